// Elements, made and found. Text only ever becomes text nodes.

export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

// An element with attributes, handlers (on...) and children: nodes, texts, or null for none.
export function make(tag, attrs = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function button(label, onclick, attrs = {}) {
  return make("button", { type: "button", onclick, ...attrs }, label);
}

// Tell people who cannot see it.
export function announce(text) {
  const place = byId("announcer");
  place.textContent = "";
  place.textContent = text;
}
