// What the server is doing: its slots, its caches, its counters; asked for while somebody looks.

import { getJson, getText } from "./api.js";
import { byId, make } from "./dom.js";

const EVERY_MS = 1500;

// Prometheus' text format as {name: sum over all labels}.
export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? ([-+\w.]+)$/.exec(line);
    if (match) found[match[1]] = (found[match[1]] ?? 0) + Number(match[2]);
  }
  return found;
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "none";
}

// [what, how much] of each counter that is shown.
export function figures(metrics) {
  const get = (name) => metrics[`riverrun_${name}`] ?? 0;
  const prompt = get("prompt_tokens_total");
  const cached = get("cached_tokens_total");
  const seconds = get("predicted_seconds_total");
  const drafted = get("draft_tokens_total");
  return [
    ["running", String(get("requests_running"))],
    ["waiting", String(get("requests_waiting"))],
    ["tokens generated", String(get("predicted_tokens_total"))],
    ["t/s of a request", seconds ? (get("predicted_tokens_total") / seconds).toFixed(1) : "none"],
    ["prompt from caches", percent(cached, cached + prompt)],
    ["drafts kept", percent(get("draft_accepted_tokens_total"), drafted)],
  ];
}

export class Watch {
  constructor(settings, modelName) {
    this.settings = settings;
    this.modelName = modelName;
    this.timer = 0;
  }

  get open() {
    return !byId("server").hidden;
  }

  toggle() {
    byId("server").hidden = this.open;
    byId("show-server").setAttribute("aria-expanded", String(this.open));
    document.body.classList.toggle("watching", this.open);
    clearTimeout(this.timer);
    if (this.open) this.look();
  }

  async look() {
    const key = this.settings.key;
    const name = this.modelName();
    try {
      const [slots, metrics] = await Promise.all([getJson("slots", key), getText("metrics", key)]);
      // Asking for a model that is not loaded would load it.
      const loaded = slots.some((slot) => slot.model === name);
      const props = loaded ? await getJson(`props?model=${encodeURIComponent(name)}`, key) : {};
      this.show({ model_alias: name, ...props }, slots, readMetrics(metrics));
      byId("server-fault").textContent = "";
    } catch (error) {
      byId("server-fault").textContent = error.message;
    }
    clearTimeout(this.timer);
    if (this.open) this.timer = setTimeout(() => this.look(), EVERY_MS);
  }

  show(props, slots, metrics) {
    const facts = [
      ["model", props.model_alias ?? ""],
      ["runs on", props.build_info ?? ""],
      ["context", props.n_ctx ? `${props.n_ctx} tokens` : ""],
      ["drafters", props.speculative?.kinds?.join(", ") ?? ""],
      ...figures(metrics),
      ["memory", props.memory ?? ""],
    ];
    byId("facts").replaceChildren(...facts.flatMap(([what, value]) =>
      value ? [make("dt", {}, what), make("dd", {}, value)] : []));
    byId("slots").replaceChildren(...slots.map(slotRow));
  }
}

function slotRow(slot) {
  const busy = slot.is_processing;
  const done = busy ? slot.n_prompt_tokens + slot.n_decoded : 0;
  const what = busy ? slot.stage ?? "busy" : "free";
  const bar = make("meter", {
    min: "0", max: String(slot.n_ctx), value: String(done), "aria-label": `context of slot ${slot.id}`,
  });
  return make("tr", {},
    make("th", { scope: "row" }, String(slot.id)),
    make("td", {}, what),
    make("td", {}, busy ? `${slot.n_prompt_tokens} (${slot.n_prompt_tokens_cache} cached)` : ""),
    make("td", {}, busy ? String(slot.n_decoded) : ""),
    make("td", {}, bar));
}
