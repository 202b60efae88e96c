// Asking the server that gave this page. Paths are relative, so that it may lie behind a prefix.

import { eventsOf } from "./sse.js";

export class ServerFault extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function faultOf(response) {
  const text = await response.text();
  let message = text.slice(0, 300);
  try {
    message = JSON.parse(text).error.message ?? message;
  } catch {
    // It is no error object; its beginning is shown.
  }
  if (response.status === 401) message += " (Settings has a field for the key.)";
  return new ServerFault(message || `the server answered ${response.status}`, response.status);
}

async function ask(path, key, more = {}) {
  let response;
  try {
    response = await fetch(path, { ...more, headers: { ...headers(key), ...more.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerFault("the server cannot be reached");
  }
  if (!response.ok) throw await faultOf(response);
  return response;
}

export async function getJson(path, key) {
  return (await ask(path, key)).json();
}

export async function getText(path, key) {
  return (await ask(path, key)).text();
}

// The chunks of a chat's answer as they come. Throws ServerFault, and AbortError when the signal
// ends it.
export async function* streamChat(body, key, signal) {
  const response = await ask("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let ended = false;
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerFault(chunk.error.message ?? String(chunk.error));
    ended = ended || (chunk.choices ?? []).some((choice) => choice.finish_reason);
    yield chunk;
  }
  if (!ended) throw new ServerFault("the connection broke off before the answer ended");
}
