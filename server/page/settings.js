// What people choose, kept in this browser.

import { byId, make } from "./dom.js";

const KEY = "riverrun.settings";
const NUMBERS = {
  temperature: ["temperature", Number.parseFloat],
  "top-p": ["top_p", Number.parseFloat],
  seed: ["seed", (text) => Number.parseInt(text, 10)],
  "max-tokens": ["max_tokens", (text) => Number.parseInt(text, 10)],
  "draft-max": ["speculative.n_max", (text) => Number.parseInt(text, 10)],
};
const FIELDS = [...Object.keys(NUMBERS), "system", "spec", "api-key", "show-drafts"];
const THEMES = ["auto", "light", "dark"];

function stored() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

export class Settings {
  constructor() {
    this.kinds = []; // the drafters that the server is known to have
    this.values = { theme: "auto", spec: "on", "show-drafts": true, ...stored() };
    for (const id of FIELDS) {
      const field = byId(id);
      this.put(field, this.values[id]);
      field.addEventListener("change", () => this.set(id, this.read(field)));
    }
    this.applyTheme();
  }

  put(field, value) {
    if (field.type === "checkbox") field.checked = Boolean(value);
    else if (value !== undefined) field.value = value;
  }

  read(field) {
    return field.type === "checkbox" ? field.checked : field.value;
  }

  set(name, value) {
    this.values[name] = value;
    try {
      localStorage.setItem(KEY, JSON.stringify(this.values));
    } catch {
      // A browser that keeps nothing still has them until the page is left.
    }
    this.onchange?.(name);
  }

  reset() {
    for (const id of FIELDS.filter((name) => name !== "api-key")) {
      const field = byId(id);
      const value = id === "spec" ? "on" : id === "show-drafts" ? true : "";
      this.put(field, value);
      this.set(id, value);
    }
  }

  get key() {
    return (this.values["api-key"] ?? "").trim();
  }

  // The drafters to choose from besides all and none.
  offer(kinds, longest) {
    this.kinds = kinds;
    const field = byId("spec");
    const wanted = this.values.spec;
    const all = kinds.length ? `On (${kinds.join(", ")})` : "On, where there are drafters";
    const named = kinds.length > 1 ? kinds.map((kind) => [kind, `Only ${kind}`]) : [];
    const options = [["on", all], ...named, ["off", "Off"]];
    field.replaceChildren(...options.map(([value, label]) => make("option", { value }, label)));
    field.value = options.some(([value]) => value === wanted) ? wanted : "on";
    byId("draft-max").placeholder = longest ? `server: ${longest}` : "the server's";
  }

  // The fields of a request; what is empty is left to the server.
  body() {
    const body = {};
    for (const [id, [name, read]] of Object.entries(NUMBERS)) {
      const value = read(byId(id).value);
      if (Number.isFinite(value)) body[name] = value;
    }
    const spec = byId("spec").value;
    // Servers without drafters refuse to be asked for any.
    if (spec === "off" || !this.kinds.length) delete body["speculative.n_max"];
    if (spec === "off") {
      body.speculative = false;
    } else if (spec !== "on") {
      body.speculative = spec;
    }
    return body;
  }

  get system() {
    return (this.values.system ?? "").trim();
  }

  nextTheme() {
    const at = THEMES.indexOf(this.values.theme);
    this.set("theme", THEMES[(at + 1) % THEMES.length]);
    this.applyTheme();
  }

  applyTheme() {
    const theme = THEMES.includes(this.values.theme) ? this.values.theme : "auto";
    document.documentElement.dataset.theme = theme;
    byId("theme").setAttribute("aria-label", `Colours: ${theme}; change`);
    byId("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  }
}
