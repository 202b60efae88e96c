// Markdown within a line: code, links, bold, italic, struck out. A tree of {tag, attrs, children};
// its leaves are Sources.

const ESCAPABLE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const DEEPEST = 12;
const SAFE = /^(https?:\/\/|mailto:)[^\s<>"]+$/i;
const BARE = /https?:\/\/[^\s<>"'`|]+/iy;
const WORD = /[\p{L}\p{N}]/u;

export function node(tag, children, attrs = {}) {
  return { tag, attrs, children };
}

// An address that a link may have, null for others: no scripts, nothing relative.
export function safeUrl(text) {
  return SAFE.test(text) ? text : null;
}

function link(url, children) {
  return node("a", children, { href: url, rel: "noopener noreferrer", target: "_blank" });
}

export function inline(source, depth = 0) {
  const reader = new Reader(source, depth);
  return reader.read();
}

class Reader {
  constructor(source, depth) {
    this.source = source;
    this.text = source.text;
    this.depth = depth;
    this.place = 0;
    this.found = [];
    this.plain = []; // cuts of plain text that have not been put out
    this.unclosed = new Set(); // marks that nothing further on closes
  }

  read() {
    while (this.place < this.text.length) {
      if (!this.special()) this.skip(1);
    }
    this.flush();
    return this.found;
  }

  skip(count) {
    this.plain.push([this.place, this.place + count]);
    this.place += count;
  }

  flush() {
    if (!this.plain.length) return;
    const text = this.plain.map(([a, b]) => this.text.slice(a, b)).join("");
    const at = this.plain.flatMap(([a, b]) => this.source.at.slice(a, b));
    const whole = this.source.slice(0, 0);
    whole.text = text;
    whole.at = at;
    this.found.push(whole);
    this.plain = [];
  }

  put(made, end) {
    this.flush();
    this.found.push(made);
    this.place = end;
    return true;
  }

  inner(from, to) {
    const part = this.source.slice(from, to);
    return this.depth < DEEPEST ? inline(part, this.depth + 1) : [part];
  }

  special() {
    const c = this.text[this.place];
    if (c === "\\") return this.escaped();
    if (c === "`") return this.code();
    if (c === "[") return this.bracket(this.place);
    if (c === "!" && this.text[this.place + 1] === "[") return this.bracket(this.place + 1);
    if (c === "<") return this.angle();
    if (c === "h" || c === "H") return this.bare();
    return this.marked(c);
  }

  escaped() {
    if (!ESCAPABLE.includes(this.text[this.place + 1] ?? "a")) return false;
    this.place += 1;
    this.skip(1);
    return true;
  }

  code() {
    const run = /`+/y;
    run.lastIndex = this.place;
    const mark = run.exec(this.text)[0];
    const from = this.place + mark.length;
    let end = this.unclosed.has(mark) ? -1 : closing(this.text, mark, from);
    if (end < 0) {
      this.unclosed.add(mark);
      this.skip(mark.length);
      return true;
    }
    const behind = end + mark.length;
    let start = from;
    const inside = this.text.slice(start, end);
    if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim()) {
      start += 1;
      end -= 1;
    }
    return this.put(node("code", [this.source.slice(start, end)]), behind);
  }

  bracket(open) {
    if (this.depth && this.unclosed.has("[")) return false;
    const close = matching(this.text, open, "[", "]");
    if (close < 0 || this.text[close + 1] !== "(") return false;
    const end = matching(this.text, close + 1, "(", ")");
    if (end < 0) return false;
    const url = safeUrl(this.text.slice(close + 2, end).trim().split(/\s+/)[0] ?? "");
    if (!url) return false;
    return this.put(link(url, this.inner(open + 1, close)), end + 1);
  }

  angle() {
    const end = this.text.indexOf(">", this.place);
    const url = end > 0 && end - this.place < 2000 && safeUrl(this.text.slice(this.place + 1, end));
    return url ? this.put(link(url, [this.source.slice(this.place + 1, end)]), end + 1) : false;
  }

  bare() {
    if (this.place && WORD.test(this.text[this.place - 1])) return false;
    BARE.lastIndex = this.place;
    const found = BARE.exec(this.text);
    if (!found) return false;
    let url = found[0].replace(/[.,;:!?*_~]+$/, "");
    if (url.endsWith(")") && !url.includes("(")) url = url.replace(/\)+[.,;:!?]*$/, "");
    if (!safeUrl(url)) return false;
    const end = this.place + url.length;
    return this.put(link(url, [this.source.slice(this.place, end)]), end);
  }

  marked(c) {
    for (const [mark, tag] of MARKS) {
      if (c !== mark[0] || !this.text.startsWith(mark, this.place)) continue;
      const from = this.place + mark.length;
      if (!this.opens(mark, from) || this.unclosed.has(mark)) continue;
      const end = this.closer(mark, from);
      if (end < 0) {
        this.unclosed.add(mark);
        continue;
      }
      return this.put(node(tag, this.inner(from, end)), end + mark.length);
    }
    const run = runLength(this.text, this.place);
    if ("*_~".includes(c) && run > 1) {
      this.skip(run);
      return true;
    }
    return false;
  }

  opens(mark, from) {
    const next = this.text[from];
    if (next === undefined || /\s/.test(next)) return false;
    return mark[0] !== "_" || !this.place || !WORD.test(this.text[this.place - 1]);
  }

  // Where the mark that closes one begins, -1 for nowhere.
  closer(mark, from) {
    const text = this.text;
    for (let i = from; i < text.length; i += 1) {
      if (text[i] === "\\") i += 1;
      else if (text[i] === "`") i = this.behindCode(i) - 1;
      else if (text[i] === mark[0]) {
        const run = runLength(text, i);
        const fits = run === mark.length || run === 3 || (mark.length === 1 && run > 3);
        const end = i + run - mark.length;
        if (fits && i > from && !/\s/.test(text[i - 1]) && this.ends(mark, end)) return end;
        i += run - 1;
      }
    }
    return -1;
  }

  ends(mark, end) {
    return mark[0] !== "_" || !WORD.test(this.text[end + mark.length] ?? " ");
  }

  behindCode(at) {
    const run = runLength(this.text, at);
    const mark = "`".repeat(run);
    const end = this.unclosed.has(mark) ? -1 : closing(this.text, mark, at + run);
    if (end < 0) this.unclosed.add(mark);
    return end < 0 ? at + run : end + run;
  }
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

// Where a run of exactly these backticks is, -1 for nowhere.
function closing(text, mark, from) {
  let at = text.indexOf(mark, from);
  while (at >= 0) {
    const run = runLength(text, at);
    if (run === mark.length) return at;
    at = text.indexOf(mark, at + run);
  }
  return -1;
}

// The bracket that closes the one at `open`, -1 for none nearby.
function matching(text, open, left, right) {
  let depth = 0;
  const most = Math.min(text.length, open + 2000);
  for (let i = open; i < most; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === left) depth += 1;
    else if (text[i] === right && (depth -= 1) === 0) return i;
  }
  return -1;
}
