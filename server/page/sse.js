// Server-sent events of a fetch, cut anywhere. Source: HTML standard, section 9.2.6; names, ids and
// comments are passed over.

export class EventStream {
  constructor() {
    this.decoder = new TextDecoder("utf-8");
    this.line = "";
    this.data = [];
    this.afterReturn = false; // a line feed now belongs to the line that ended
  }

  // The data of the events that end in these bytes, in order.
  feed(bytes) {
    let text = this.decoder.decode(bytes, { stream: true });
    if (this.afterReturn && text) {
      if (text[0] === "\n") text = text.slice(1);
      this.afterReturn = false;
    }
    if (!text) return [];
    this.afterReturn = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    const rest = lines.pop();
    const events = [];
    for (const line of lines) {
      this.takeLine(this.line + line, events);
      this.line = "";
    }
    this.line += rest;
    return events;
  }

  takeLine(line, events) {
    if (line === "") {
      if (this.data.length) events.push(this.data.join("\n"));
      this.data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      const value = line.slice(5);
      this.data.push(value[0] === " " ? value.slice(1) : value);
    }
  }
}

// The data of a response's events as they come.
export async function* eventsOf(body) {
  const reader = body.getReader();
  const stream = new EventStream();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* stream.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
