// Who proposed which part of an answer: the pieces that a stream's chunks name (`drafted`) laid over
// the text that it gives, from which tags of reasoning may be missing.

const KNOWN = ["draft", "mtp", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"];
export const COLOURS = 8;
const MOST_WAITING = 65536;

export class Owners {
  constructor() {
    this.waiting = ""; // text that was named but not yet given
    this.names = []; // whose it is, of each character
  }

  // The pieces of a chunk: [[text, drafter or null], ...].
  name(pieces) {
    for (const [text, drafter] of pieces ?? []) {
      this.waiting += text;
      for (let i = 0; i < text.length; i += 1) this.names.push(drafter);
    }
    if (this.waiting.length > MOST_WAITING) this.drop(this.waiting.length - MOST_WAITING);
  }

  // The drafter of each character of a text that is given now; null for the model or nobody known.
  give(text) {
    const at = this.waiting.indexOf(text);
    if (at < 0) return new Array(text.length).fill(null);
    const found = this.names.slice(at, at + text.length);
    this.drop(at + text.length);
    return found;
  }

  drop(count) {
    this.waiting = this.waiting.slice(count);
    this.names.splice(0, count);
  }
}

// The number of a drafter's colour: fixed for those that riverrun brings along.
export function colourOf(drafter) {
  const known = KNOWN.indexOf(drafter);
  if (known >= 0) return known;
  return COLOURS - 1;
}

// How many characters each drafter proposed, of all: [[drafter, count], ...], by their colours.
export function shares(owners) {
  const counts = new Map();
  for (const drafter of owners) {
    if (drafter !== null) counts.set(drafter, (counts.get(drafter) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => colourOf(a[0]) - colourOf(b[0]));
}

// Runs of places of one drafter: [[drafter or null, from, to], ...] over a list of places.
export function runs(places, owners) {
  const found = [];
  places.forEach((place, i) => {
    const drafter = owners?.[place] ?? null;
    const last = found[found.length - 1];
    if (last && last[0] === drafter) last[2] = i + 1;
    else found.push([drafter, i, i + 1]);
  });
  return found;
}
