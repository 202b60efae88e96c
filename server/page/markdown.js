// Markdown as a tree of {tag, attrs, children} whose leaves are Sources: headings, lists, tables,
// quotes, fenced code, and what inline.js knows. HTML is text.

import { inline, node } from "./inline.js";
import { Source } from "./source.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 12;

// The blocks of a text from a place on at which one begins, in order. Each has `start`, the place of
// its first character. What is written on to a text changes its last two blocks at most, and adds others:
// its last line may have begun a block for now, and in the end go on with the one before.
export function markdown(text, place = 0) {
  return blocks(Source.from(text, place).lines(), 0);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].text.trim()) {
      at += 1;
      continue;
    }
    const [made, end] = block(lines, at, depth);
    made.start = lines[at].at[0];
    found.push(made);
    at = end;
  }
  return found;
}

function block(lines, at, depth) {
  const text = lines[at].text;
  if (FENCE.test(text)) return fenced(lines, at);
  if (HEADING.test(text)) return heading(lines, at);
  if (RULE.test(text)) return [node("hr", []), at + 1];
  if (depth < DEEPEST && QUOTE.test(text)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(text)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

function starts(lines, at) {
  const text = lines[at].text;
  const item = ITEM.exec(text);
  const begins = item && text.length > item[0].length && !/^\d/.test(item[2]);
  const tests = [FENCE, HEADING, RULE, QUOTE];
  return begins || tests.some((test) => test.test(text)) || isTable(lines, at);
}

function fenced(lines, at) {
  const [, indent, mark, info] = FENCE.exec(lines[at].text);
  let end = at + 1;
  const closes = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`);
  while (end < lines.length && !closes.test(lines[end].text)) end += 1;
  const inside = lines.slice(at + 1, end).map((line) => {
    let cut = 0;
    while (cut < indent.length && line.text[cut] === " ") cut += 1;
    return line.slice(cut);
  });
  const language = info.trim().split(/\s+/)[0].toLowerCase();
  const made = node("pre", [Source.join(inside)], { language });
  return [made, Math.min(end + 1, lines.length)];
}

function heading(lines, at) {
  const line = lines[at];
  const [start, marks] = HEADING.exec(line.text);
  const behind = line.text.slice(start.length).trimEnd();
  const bare = behind.replace(/#{1,6}$/, "");
  const closed = bare === "" || /[ \t]$/.test(bare);
  const end = start.length + (closed ? bare.trimEnd() : behind).length;
  // The page has its own first and second level.
  const level = Math.min(6, marks.length + 2);
  const children = inline(line.slice(start.length, end));
  return [node(`h${level}`, children), at + 1];
}

function quote(lines, at, depth) {
  let end = at;
  const inside = [];
  while (end < lines.length && QUOTE.test(lines[end].text)) {
    inside.push(lines[end].slice(QUOTE.exec(lines[end].text)[0].length));
    end += 1;
  }
  return [node("blockquote", blocks(inside, depth + 1)), end];
}

function indentOf(text) {
  return /^ */.exec(text)[0].length;
}

function list(lines, at, depth) {
  const [, indent, marker] = ITEM.exec(lines[at].text);
  const ordered = /\d/.test(marker);
  const kind = marker[marker.length - 1];
  const items = [];
  let loose = false;
  let blanks = false; // behind the last item
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end].text);
    const same = found && found[2].endsWith(kind) && /\d/.test(found[2]) === ordered;
    if (!same || RULE.test(lines[end].text) || found[1].length > indent.length + 3) break;
    loose = loose || blanks;
    const [item, behind, blank] = listItem(lines, end, found);
    items.push(item);
    end = behind;
    blanks = blank;
    loose = loose || item.some((line, i) => i && !line.text.trim());
  }
  const children = items.map((item) => {
    const inside = blocks(item, depth + 1);
    const tight = (made) => (made.tag === "p" && !loose ? made.children : [made]);
    return node("li", inside.flatMap(tight));
  });
  const first = parseInt(marker, 10);
  const attrs = ordered && first !== 1 ? { start: String(first) } : {};
  return [node(ordered ? "ol" : "ul", children, attrs), end];
}

// The lines of an item without its indent, the line behind it, and whether blank lines lie between.
function listItem(lines, at, found) {
  const width = Math.min(found[0].length, found[1].length + found[2].length + 4) || 2;
  const inside = [lines[at].slice(Math.min(width, lines[at].length))];
  let end = at + 1;
  let blanks = 0;
  while (end < lines.length) {
    const text = lines[end].text;
    if (!text.trim()) {
      blanks += 1;
    } else if (indentOf(text) >= Math.min(width, found[1].length + 2)) {
      for (; blanks; blanks -= 1) inside.push(lines[end].slice(0, 0));
      inside.push(lines[end].slice(Math.min(width, indentOf(text))));
    } else if (!blanks && !ITEM.test(text) && !starts(lines, end)) {
      inside.push(lines[end]);
    } else {
      break;
    }
    end += 1;
  }
  return [inside, end, blanks > 0];
}

function isTable(lines, at) {
  const next = lines[at + 1]?.text ?? "";
  return lines[at].text.includes("|") && next.includes("-") && next.length < 2000
    && DELIMITERS.test(next)
    && cells(lines[at]).length === cells(lines[at + 1]).length;
}

// The cells of a row, trimmed.
function cells(line) {
  const text = line.text;
  const found = [];
  let from = /^\s*\|?/.exec(text)[0].length;
  for (let i = from; i <= text.length; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (i === text.length || text[i] === "|") {
      if (i < text.length || text.slice(from).trim()) found.push(trimmed(line.slice(from, i)));
      from = i + 1;
    }
  }
  return found;
}

function trimmed(source) {
  const start = source.text.length - source.text.trimStart().length;
  return source.slice(start, Math.max(start, source.text.trimEnd().length));
}

function table(lines, at) {
  const heads = cells(lines[at]);
  const sides = cells(lines[at + 1]).map(({ text }) => {
    const right = text.endsWith(":");
    if (!right) return "left";
    return text.startsWith(":") ? "center" : "right";
  });
  let end = at + 2;
  const rows = [];
  while (end < lines.length && lines[end].text.includes("|")) {
    rows.push(cells(lines[end]));
    end += 1;
  }
  const row = (tag, found) =>
    node("tr", heads.map((_, i) =>
      node(tag, found[i] ? inline(found[i]) : [], { class: `to-${sides[i] ?? "left"}` })));
  const body = node("tbody", rows.map((found) => row("td", found)));
  return [node("table", [node("thead", [row("th", heads)]), body]), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].text.trim() && !starts(lines, end)) end += 1;
  return [node("p", inline(trimmed(Source.join(lines.slice(at, end))))), end];
}
