// Text that knows where it comes from: of each character, its place in the whole. So a cut of it,
// however marked up, can be told who proposed it.

export class Source {
  constructor(text, at) {
    this.text = text;
    this.at = at;
  }

  // The end of a text, from a place of it on.
  static from(text, place) {
    const end = text.slice(place);
    return new Source(end, Array.from({ length: end.length }, (_, i) => place + i));
  }

  get length() {
    return this.text.length;
  }

  slice(from, to) {
    return new Source(this.text.slice(from, to), this.at.slice(from, to));
  }

  // Lines without their ends.
  lines() {
    const found = [];
    let from = 0;
    for (;;) {
      const end = this.text.indexOf("\n", from);
      if (end < 0) break;
      found.push(this.slice(from, end));
      from = end + 1;
    }
    found.push(this.slice(from));
    return found;
  }

  // Lines as one text again.
  static join(lines) {
    const at = [];
    lines.forEach((line, i) => {
      if (i) at.push(at.length ? at[at.length - 1] + 1 : 0);
      for (const place of line.at) at.push(place);
    });
    return new Source(lines.map((line) => line.text).join("\n"), at);
  }
}
