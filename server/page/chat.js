// The conversation: what was said, how it is shown, and how it goes on.

import { streamChat } from "./api.js";
import { announce, button, byId, make } from "./dom.js";
import { Owners, colourOf, shares } from "./drafts.js";
import { Rate } from "./rate.js";
import { View, copyButton } from "./view.js";

const EVERY_MS = 60; // between two drawings of an answer that grows
const SHARE = 4; // of which a drawing takes one part at most

class Message {
  constructor(role, content = "") {
    this.role = role;
    this.content = content;
    this.owners = new Array(content.length).fill(null);
    this.reasoning = "";
    this.thinkers = []; // the owners of the reasoning
    this.note = "";
    this.fault = "";
    this.cut = false; // at the length limit
    this.element = null;
    this.update = null; // shows what it has come to
    this.timer = 0; // of the next update
  }

  // A failed answer may have nothing to send.
  get isEmpty() {
    return !this.content && !this.reasoning;
  }

  asSent() {
    const sent = { role: this.role, content: this.content };
    if (this.reasoning) sent.reasoning_content = this.reasoning;
    return sent;
  }
}

export class Chat {
  // settings: of settings.js; modelName: gives the model to ask, or "".
  constructor(settings, modelName) {
    this.settings = settings;
    this.modelName = modelName;
    this.place = byId("messages");
    this.messages = [];
    this.running = null; // the AbortController of an answer that comes
    this.drawing = 0; // milliseconds that the last drawing took
  }

  clear() {
    this.stop();
    this.messages = [];
    this.place.replaceChildren();
    byId("empty").hidden = false;
    this.showLegend();
    byId("prompt").focus();
  }

  stop() {
    this.running?.abort();
  }

  async send(text) {
    if (this.running || !text.trim()) return false;
    this.append(new Message("user", text));
    await this.answer();
    return true;
  }

  append(message) {
    byId("empty").hidden = true;
    this.messages.push(message);
    message.element = this.draw(message);
    this.place.append(message.element);
    toEnd();
    return message;
  }

  // Forget a message and all behind it.
  truncate(message) {
    const at = this.messages.indexOf(message);
    for (const gone of this.messages.splice(at)) gone.element.remove();
  }

  async regenerate(message) {
    if (this.running) return;
    this.truncate(message);
    await this.answer();
  }

  async edit(message, text) {
    if (this.running || !text.trim()) return;
    this.truncate(message);
    await this.send(text);
  }

  body() {
    const said = this.messages.filter((each) => !each.isEmpty).map((each) => each.asSent());
    const system = this.settings.system;
    const messages = system ? [{ role: "system", content: system }, ...said] : said;
    const model = this.modelName();
    return {
      ...(model ? { model } : {}),
      messages,
      return_drafted: true,
      return_tokens: true,
      ...this.settings.body(),
    };
  }

  async answer() {
    const body = this.body();
    const message = this.append(new Message("assistant"));
    const rate = new Rate(performance.now());
    const owners = new Owners();
    this.running = new AbortController();
    this.showRunning(message, true);
    try {
      for await (const chunk of streamChat(body, this.settings.key, this.running.signal)) {
        rate.take(chunk, performance.now());
        this.take(message, chunk, owners);
        message.note = rate.summary(message.owners);
        this.soon(message);
      }
    } catch (error) {
      if (error.name === "AbortError") message.note = join(rate.summary(message.owners), "stopped");
      else message.fault = error.message;
    }
    this.running = null;
    this.refresh(message);
    this.showRunning(message, false);
    announce(message.fault ? `Error: ${message.fault}` : `Answer: ${message.content}`);
  }

  take(message, chunk, owners) {
    for (const choice of chunk.choices ?? []) {
      owners.name(choice.drafted);
      const { content, reasoning_content: reasoning } = choice.delta ?? {};
      if (reasoning) {
        message.reasoning += reasoning;
        message.thinkers.push(...owners.give(reasoning));
      }
      if (content) {
        message.content += content;
        message.owners.push(...owners.give(content));
      }
      if (choice.finish_reason === "length") message.cut = true;
    }
  }

  showRunning(message, running) {
    document.body.classList.toggle("running", running);
    byId("stop").hidden = !running;
    byId("send").hidden = running;
    message.element.setAttribute("aria-busy", String(running));
    message.element.classList.toggle("growing", running);
  }

  soon(message) {
    if (message.timer) return;
    const pause = Math.max(EVERY_MS, SHARE * this.drawing);
    message.timer = setTimeout(() => this.refresh(message), pause);
  }

  refresh(message) {
    clearTimeout(message.timer);
    message.timer = 0;
    const began = performance.now();
    const follow = atEnd();
    message.update();
    this.showLegend();
    this.drawing = performance.now() - began;
    if (follow) toEnd();
  }

  draw(message) {
    const who = message.role === "user" ? "You" : "Model";
    const element = make("article", { class: `message ${message.role}`, "aria-label": who });
    element.append(make("h2", {}, who));
    const draw = message.role === "user" ? drawUser : drawAssistant;
    element.append(...draw(this, message));
    message.update();
    return element;
  }

  // The drafters of all answers that are shown, with their share of the text.
  showLegend() {
    const owners = this.messages.flatMap((message) => [...message.thinkers, ...message.owners]);
    const total = this.messages
      .filter(({ role }) => role === "assistant")
      .reduce((sum, { owners: o, thinkers: t }) => sum + o.length + t.length, 0);
    const found = shares(owners).map(([drafter, count]) =>
      make("li", {},
        make("span", { class: `by by-${colourOf(drafter)}` }, drafter),
        ` ${Math.round((100 * count) / total)} %`));
    byId("legend").replaceChildren(...found);
    byId("legend-bar").hidden = !found.length;
  }
}

function join(...parts) {
  return parts.filter(Boolean).join(" · ");
}

function atEnd() {
  const scroll = byId("scroll");
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
}

function toEnd() {
  const scroll = byId("scroll");
  scroll.scrollTop = scroll.scrollHeight;
}

function drawUser(chat, message) {
  const text = make("p", { class: "said" });
  const bar = make("div", { class: "bar" });
  const shown = make("div", {}, text, bar);
  bar.append(button("Edit", () => {
    if (!chat.running) shown.replaceWith(editor(chat, message, shown));
  }));
  message.update = () => { text.textContent = message.content; };
  return [shown];
}

function editor(chat, message, shown) {
  const area = make("textarea", { "aria-label": "Edit your message", rows: "3" });
  area.value = message.content;
  const back = () => {
    form.replaceWith(shown);
    shown.querySelector("button").focus();
  };
  const form = make("form", {
    class: "edit",
    onsubmit: (event) => {
      event.preventDefault();
      chat.edit(message, area.value);
    },
    onkeydown: (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === area) {
        event.preventDefault();
        form.requestSubmit();
      }
    },
  }, area, make("div", { class: "bar" },
    make("button", { type: "submit", class: "main" }, "Send"), button("Cancel", back)));
  setTimeout(() => area.focus());
  return form;
}

function drawAssistant(chat, message) {
  const thinking = make("div", { class: "text" });
  const details = make("details", { class: "reasoning", hidden: true },
    make("summary", {}, "Reasoning"), thinking);
  const text = make("div", { class: "text" });
  const fault = make("p", { class: "fault", hidden: true, role: "alert" });
  const note = make("p", { class: "note" });
  const bar = make("div", { class: "bar" },
    button("Regenerate", () => chat.regenerate(message)),
    copyButton("Copy the answer", () => message.content));
  const views = [new View(thinking), new View(text)];
  message.update = () => {
    details.hidden = !message.reasoning;
    views[0].show(message.reasoning, message.thinkers);
    views[1].show(message.content, message.owners);
    fault.hidden = !message.fault;
    fault.textContent = message.fault;
    note.textContent = join(message.note, message.cut && "cut at the length limit");
  };
  return [details, text, fault, note, bar];
}
