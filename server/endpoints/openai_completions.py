"""/v1/completions: texts continued, as the OpenAI API has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from ..choices import (
    entries_of,
    finish_reason,
    header,
    merged,
    submit_choices,
    text_logprobs,
    timings,
    usage,
)
from ..endpoint import Call, endpoint
from ..failures import bad_request
from ..filling import fill_in
from ..generating import (
    apart,
    apart_if_long,
    broken_stream,
    prompts_of,
    sampling_options,
    stream_end,
)
from ..http import Answer, Last, Stream, sse
from ..served import Part, Running, Served
from ..wire.openai import CompletionBody
from ..wire.sampling import check_tokens

MOST_PROMPTS = 64
USUAL_TOKENS = 16  # OpenAI's default


@endpoint("/v1/completions", CompletionBody, summary="Continue a text, or several.")
async def completions(call: Call[CompletionBody]) -> Answer | Stream:
    """Continue prompts."""
    body = call.body
    served = await call.model(body.model)
    if body.best_of is not None and body.best_of != body.n:
        raise bad_request("best_of: expected n; the best of several is not chosen", "best_of")
    prompts = await apart_if_long(_size(body), _prompts, served, body)
    if len(prompts) * body.n > MOST_PROMPTS:
        raise bad_request(f"prompt: at most {MOST_PROMPTS} texts in all, with n", "prompt")
    options = sampling_options(call.service, served, body)
    if body.grammar is not None:
        options["constraint"] = await apart(served.constraint, "grammar", body.grammar)
    elif body.json_schema is not None:
        options["constraint"] = await apart(served.constraint, "json_schema", body.json_schema)
    most = body.max_tokens if body.max_tokens is not None else body.n_predict
    most = USUAL_TOKENS if most is None else check_tokens("max_tokens", most)
    runs = submit_choices(served, prompts, body.n, most, logprobs=body.logprobs, **options)
    writer = _Writer(body, served, runs)
    if body.stream:
        return Stream(writer.events(), broken_stream)
    return Answer(await writer.whole())


def _size(body: CompletionBody) -> int:
    """Characters of its texts, or token ids."""
    texts = body.prompt if isinstance(body.prompt, list) else [body.prompt, body.suffix]
    return sum(len(text) for text in texts if isinstance(text, str | list)) + len(texts)


def _prompts(served: Served, body: CompletionBody) -> list[list[int]]:
    if body.suffix is None:
        return prompts_of(served, body.prompt)
    if not isinstance(body.prompt, str):
        raise bad_request("suffix: needs a prompt that is one text", "suffix")
    return [fill_in(served, body.prompt, body.suffix)]


class _Writer:
    """The answer to one request."""

    def __init__(self, body: CompletionBody, served: Served, runs: Sequence[Running]) -> None:
        self.body, self.served, self.runs = body, served, runs
        self.header = header("text_completion", "cmpl", served.name)
        self._lengths = [0] * len(runs)

    async def whole(self) -> dict[str, Any]:
        """All texts at once."""
        texts = [list[str]() for _ in self.runs]
        async for part in merged(self.runs):
            texts[part.choice].append(part.text)
        choices = []
        for i, run in enumerate(self.runs):
            request = run.request
            choice = self._choice(i, "".join(texts[i]), (0, len(request.tokens)))
            choice["finish_reason"] = finish_reason(request)
            if self.body.return_tokens:
                choice["tokens"] = list(request.tokens)
            choices.append(choice)
        requests = [run.request for run in self.runs]
        return {
            **self.header,
            "choices": choices,
            "usage": usage(requests, self.body.n),
            "timings": timings(requests[0]),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """Texts as they come."""
        left = len(self.runs)
        try:
            async for part in merged(self.runs):
                left -= part.finished and not self.runs[part.choice].failed
                event = sse(self._event(part))
                yield event if left else Last(event + stream_end(self.body, self.runs, self.header))
        finally:
            for run in self.runs:
                run.cancel()

    def _event(self, part: Part) -> dict[str, Any]:
        request = self.runs[part.choice].request
        choice = self._choice(part.choice, part.text, part.tokens)
        choice["finish_reason"] = finish_reason(request) if part.finished else None
        if self.body.return_drafted:
            choice["drafted"] = part.pieces
        if self.body.return_tokens:
            choice["tokens"] = request.tokens[slice(*part.tokens)]
        event = {**self.header, "choices": [choice]}
        if part.finished or self.body.timings_per_token:
            event["timings"] = timings(request)
        return event

    def _choice(self, i: int, text: str, tokens: tuple[int, int]) -> dict[str, Any]:
        if self.body.echo and not self._lengths[i]:
            tokenizer = self.served.model.tokenizer
            text = tokenizer.decode(self.runs[i].request.prompt) + text
        found = None
        if self.body.logprobs is not None:
            entries = entries_of(self.runs[i].request, tokens)
            found = text_logprobs(entries, self._lengths[i])
        self._lengths[i] += max(1, len(text))
        return {"index": i, "text": text, "logprobs": found}
