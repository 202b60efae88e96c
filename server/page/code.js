// Which parts of a program are comments, strings, numbers and keywords: enough to read it by, for
// languages by their kind of comment.

const HASH = "python py sh bash shell zsh ruby rb yaml yml toml perl r make makefile dockerfile nix julia elixir";
const SLASH =
  "c cpp c++ cc h hpp cuda cu java javascript js jsx typescript ts tsx json jsonc go rust rs swift kotlin kt " +
  "scala cs csharp php dart css scss zig glsl proto";
const DASH = "sql lua haskell hs ada vhdl";
const KEYWORDS = new Set(
  ("abstract and as assert async await begin bool break case catch char class const constexpr continue def " +
  "default defer del delete do double elif else elsif end enum except export extends extern false final " +
  "finally float fn for foreach from func function global go goto if impl implements import in include int " +
  "interface is lambda let local long loop match mod mut namespace new nil none nonlocal not null or package " +
  "pass private protected pub public raise return self short signed sizeof static struct super switch " +
  "template then this throw trait true try type typedef typename undefined union unless unsafe unsigned " +
  "until use using var virtual void volatile when where while with yield select insert update values " +
  "create table join on group order by limit having").split(" "),
);
const STRINGS = "\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?";
const TRIPLE = "\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)";
const NUMBER = "\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w*";
const WORD = "[A-Za-z_$][\\w$]*";

function pattern(comments, strings) {
  return new RegExp(`(${comments})|(${strings})|(${NUMBER})|(${WORD})`, "g");
}

const KINDS = [
  [HASH, pattern("#[^\\n]*", `${TRIPLE}|${STRINGS}`)],
  [SLASH, pattern("//[^\\n]*|/\\*[^]*?(?:\\*/|$)", `\`(?:\\\\.|[^\`\\\\])*\`?|${STRINGS}`)],
  [DASH, pattern("--[^\\n]*", STRINGS)],
].map(([names, regex]) => [new Set(names.split(" ")), regex]);

// [class or "", from, to] of each part of a program, without gaps.
export function coloured(text, language) {
  const regex = KINDS.find(([names]) => names.has(language))?.[1];
  const found = [];
  let behind = 0;
  const add = (name, from, to) => {
    if (from < to) found.push([name, from, to]);
  };
  for (const match of regex ? text.matchAll(regex) : []) {
    const [whole, comment, string, number, word] = match;
    const plain = word !== undefined && !KEYWORDS.has(language === "sql" ? word.toLowerCase() : word)
      && !["None", "True", "False"].includes(word);
    if (plain) continue;
    const name = comment ? "comment" : string ? "string" : number ? "number" : "keyword";
    add("", behind, match.index);
    add(`code-${name}`, match.index, match.index + whole.length);
    behind = match.index + whole.length;
  }
  add("", behind, text.length);
  return found;
}
