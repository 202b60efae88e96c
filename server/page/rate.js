// How fast an answer comes, and what drafts gave: live by what has arrived, then by the server's own
// `timings`.

import { shares } from "./drafts.js";

export class Rate {
  constructor(now) {
    this.began = now;
    this.first = null;
    this.last = now;
    this.tokens = 0;
    this.usage = null;
    this.timings = null;
  }

  // A chunk of a stream that came now.
  take(chunk, now) {
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    for (const choice of chunk.choices ?? []) {
      const text = choice.delta?.content || choice.delta?.reasoning_content;
      const count = choice.tokens?.length ?? (text ? 1 : 0);
      if (!count) continue;
      this.tokens += count;
      this.first ??= now;
      this.last = now;
    }
  }

  // Tokens per second of generating, null before there is one.
  get perSecond() {
    if (this.timings?.predicted_per_second) return this.timings.predicted_per_second;
    const seconds = (this.last - this.first) / 1000;
    return this.first !== null && seconds > 0 ? this.tokens / seconds : null;
  }

  // In a line. owners: the drafter of each character so far.
  summary(owners) {
    const tokens = this.usage?.completion_tokens ?? this.timings?.predicted_n ?? this.tokens;
    const parts = [`${tokens} token${tokens === 1 ? "" : "s"}`];
    if (this.perSecond !== null) parts.push(`${this.perSecond.toFixed(1)} t/s`);
    if (this.first !== null) parts.push(`first after ${Math.round(this.first - this.began)} ms`);
    parts.push(...this.drafts(owners));
    const cached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
    if (cached) parts.push(`${cached} of ${this.usage.prompt_tokens} prompt tokens cached`);
    return parts.join(" · ");
  }

  drafts(owners) {
    const { draft_n: drafted, draft_n_accepted: kept } = this.timings ?? {};
    if (drafted) {
      return [`${kept} of ${drafted} drafts kept (${Math.round((100 * kept) / drafted)} %)`];
    }
    const count = shares(owners).reduce((sum, [, n]) => sum + n, 0);
    return count ? [`${Math.round((100 * count) / owners.length)} % from drafts`] : [];
  }
}
