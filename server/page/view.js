// Trees of markdown.js as elements, each character marked by the drafter that proposed it.

import { coloured } from "./code.js";
import { announce, button, make } from "./dom.js";
import { colourOf, runs } from "./drafts.js";
import { markdown } from "./markdown.js";

const TAGS = new Set(
  "p h3 h4 h5 h6 hr ul ol li blockquote pre code table thead tbody tr th td a strong em del".split(" "),
);

export class View {
  // place: the element whose content this is.
  constructor(place) {
    this.place = place;
    this.text = "";
    this.shown = [];
  }

  // Show a text, which begins with the one before; owners: the drafter of each of its characters.
  // All elements but those of the last two blocks stay, and what is selected in them.
  show(text, owners) {
    if (text === this.text) return;
    this.text = text;
    const open = this.shown.splice(-2);
    for (const { made } of open) made.remove();
    for (const block of markdown(text, open[0]?.start ?? 0)) {
      const made = build(block, owners);
      this.place.append(made);
      this.shown.push({ start: block.start, made });
    }
  }
}

function build(tree, owners) {
  if (!tree.tag) return leaf(tree, owners);
  if (!TAGS.has(tree.tag)) throw new Error(`no element for ${tree.tag}`);
  if (tree.tag === "pre") return program(tree, owners);
  const made = make(tree.tag, tree.attrs);
  for (const child of tree.children) made.append(build(child, owners));
  return tree.tag === "table" ? make("div", { class: "wide", tabindex: "0" }, made) : made;
}

// A text in which what drafters proposed is marked.
function leaf(source, owners) {
  const found = document.createDocumentFragment();
  for (const [drafter, from, to] of runs(source.at, owners)) {
    const text = source.text.slice(from, to);
    found.append(drafter === null ? text : marked(text, drafter));
  }
  return found;
}

export function marked(text, drafter) {
  return make("span", { class: `by by-${colourOf(drafter)}`, title: `drafted by ${drafter}` }, text);
}

function program(tree, owners) {
  const [source] = tree.children;
  const { language } = tree.attrs;
  const code = make("code");
  for (const [name, from, to] of coloured(source.text, language)) {
    const part = leaf(source.slice(from, to), owners);
    code.append(name ? make("span", { class: name }, part) : part);
  }
  const copy = copyButton(language ? `Copy ${language} code` : "Copy code", () => source.text);
  const head = make("div", { class: "code-head" }, make("span", {}, language || "code"), copy);
  return make("div", { class: "program" }, head, make("pre", { tabindex: "0" }, code));
}

// A button that copies what `text` gives. Browsers allow it only for pages of this machine and https.
export function copyButton(label, text) {
  const made = button("Copy", async () => {
    let done = "Copied";
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      done = "Not allowed";
    }
    made.textContent = done;
    announce(done);
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }, { "aria-label": label });
  return made;
}
