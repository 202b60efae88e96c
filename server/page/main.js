// The page: its parts put together, keys and buttons.

import { getJson } from "./api.js";
import { Chat } from "./chat.js";
import { byId, make } from "./dom.js";
import { Settings } from "./settings.js";
import { Watch } from "./watch.js";

const settings = new Settings();
const modelName = () => byId("model").value;
const chat = new Chat(settings, modelName);
const watch = new Watch(settings, modelName);

async function loadModels() {
  const field = byId("model");
  try {
    const { data } = await getJson("v1/models", settings.key);
    const wanted = settings.values.model;
    field.replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
    if (data.some(({ id }) => id === wanted)) field.value = wanted;
    field.disabled = data.length < 2;
    byId("fault").textContent = "";
    await loadDrafters();
  } catch (error) {
    byId("fault").textContent = error.message;
  }
}

let known = ""; // the model whose drafters are on offer

async function loadDrafters() {
  const name = modelName();
  if (name === known) return;
  known = "";
  settings.offer([], 0);
  // Asking for a model that is not loaded would load it.
  const { meta } = await getJson(`v1/models/${encodeURIComponent(name)}`, settings.key);
  if (!meta.loaded) return;
  const props = await getJson(`props?model=${encodeURIComponent(name)}`, settings.key);
  known = name;
  settings.offer(props.speculative?.kinds ?? [], props.speculative?.draft_max ?? 0);
}

async function send() {
  const field = byId("prompt");
  const text = field.value;
  if (chat.running || !text.trim()) return;
  field.value = "";
  fit(field);
  await chat.send(text);
  lookForDrafters(); // a model that was not loaded is now
}

async function lookForDrafters() {
  try {
    await loadDrafters();
  } catch (error) {
    byId("fault").textContent = error.message;
  }
}

function fit(field) {
  field.rows = Math.min(8, field.value.split("\n").length);
}

function showDrafts() {
  document.body.classList.toggle("plain", !settings.values["show-drafts"]);
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("prompt").addEventListener("input", (event) => fit(event.target));
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.running && !byId("settings").open) {
    event.preventDefault();
    chat.stop();
    byId("prompt").focus();
  }
});
byId("stop").addEventListener("click", () => {
  chat.stop();
  byId("prompt").focus();
});
byId("new-chat").addEventListener("click", () => chat.clear());
byId("theme").addEventListener("click", () => settings.nextTheme());
byId("show-server").addEventListener("click", () => watch.toggle());
byId("show-settings").addEventListener("click", () => byId("settings").showModal());
byId("reset").addEventListener("click", () => settings.reset());
byId("model").addEventListener("change", () => {
  settings.set("model", modelName());
  lookForDrafters();
});
settings.onchange = (name) => {
  if (name === "api-key") loadModels();
  showDrafts();
};

showDrafts();
settings.offer([], 0);
loadModels();
// Where fingers point, it would call up the keyboard.
if (matchMedia("(pointer: fine)").matches) byId("prompt").focus();
