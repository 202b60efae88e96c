"""/completion and /infill: texts continued and filled in, as llama-server has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from ...engine.request import Request
from ..choices import entries_of, full_logprob, timings
from ..endpoint import Call, endpoint
from ..filling import fill_in
from ..generating import apart, broken_stream, sampling_options, tokens_of
from ..http import Answer, Stream, sse
from ..served import Part, Running, Served
from ..wire.llama import InfillBody, LlamaCompletionBody
from ..wire.sampling import check_tokens

_STOP_TYPES = {"length": "limit", "cancelled": "none"}


@endpoint("/completion", LlamaCompletionBody, summary="Continue a text, as llama-server does.")
async def completion(call: Call[LlamaCompletionBody]) -> Answer | Stream:
    """Continue a prompt."""
    served = await call.model(call.body.model)
    tokens = await apart(tokens_of, served, call.body.prompt)
    return await _continued(call, served, tokens)


@endpoint("/completions", LlamaCompletionBody, summary="The same.")
async def completions(call: Call[LlamaCompletionBody]) -> Answer | Stream:
    """Continue a prompt."""
    return await completion(call)


@endpoint("/infill", InfillBody, summary="Fill in what is missing between two texts.")
async def infill(call: Call[InfillBody]) -> Answer | Stream:
    """Fill in a hole."""
    body = call.body
    served = await call.model(body.model)
    extra = [(each.filename, each.text) for each in body.input_extra or ()]
    tokens = await apart(fill_in, served, body.input_prefix, body.input_suffix, extra, body.prompt)
    return await _continued(call, served, tokens)


async def _continued(call: Call[Any], served: Served, tokens: Sequence[int]) -> Answer | Stream:
    body = call.body
    options = sampling_options(call.service, served, body)
    if body.grammar:
        options["constraint"] = await apart(served.constraint, "grammar", body.grammar)
    elif body.json_schema is not None:
        options["constraint"] = await apart(served.constraint, "json_schema", body.json_schema)
    most = body.n_predict if body.n_predict is not None else body.max_tokens
    logprobs = body.n_probs or None
    run = served.submit(tokens, check_tokens("n_predict", most), logprobs=logprobs, **options)
    writer = _Writer(body, served, run)
    if body.stream:
        return Stream(writer.events(), broken_stream)
    return Answer(await writer.whole())


class _Writer:
    """The answer to one request."""

    def __init__(self, body: Any, served: Served, run: Running) -> None:
        self.body, self.served, self.run = body, served, run
        self.request = run.request

    async def whole(self) -> dict[str, Any]:
        """All of the text at once."""
        texts = [part.text async for part in self.run.parts()]
        return self._final("".join(texts), (0, len(self.request.tokens)))

    async def events(self) -> AsyncIterator[bytes]:
        """The text as it comes."""
        try:
            async for part in self.run.parts():
                yield sse(self._event(part))
        finally:
            self.run.cancel()

    def _event(self, part: Part) -> dict[str, Any]:
        if part.finished:
            found = self._final(part.text, part.tokens)
        else:
            found = {**self._common(part.text, part.tokens), "stop": False}
            if self.body.timings_per_token:
                found["timings"] = timings(self.request)
        if self.body.return_drafted:
            found["drafted"] = part.pieces
        return found

    def _common(self, text: str, tokens: tuple[int, int]) -> dict[str, Any]:
        request = self.request
        found: dict[str, Any] = {
            "index": 0,
            "content": text,
            "tokens": request.tokens[slice(*tokens)] if self.body.return_tokens else [],
            "id_slot": request.seq,
            "tokens_predicted": len(request.tokens),
            "tokens_evaluated": len(request.prompt),
        }
        if self.body.n_probs:
            entries = entries_of(request, tokens)
            found["completion_probabilities"] = list(map(full_logprob, entries))
        return found

    def _final(self, text: str, tokens: tuple[int, int]) -> dict[str, Any]:
        request, params = self.request, self.request.sampler.params
        result = request.result
        reason = result.finish_reason if result is not None else "cancelled"
        return {
            **self._common(text, tokens),
            "stop": True,
            "model": self.served.name,
            "generation_settings": {
                **vars(params),
                "logit_bias": [[token, bias] for token, bias in params.logit_bias.items()],
                "seed": None if params.greedy else request.sampler.seed,
                "n_ctx": self.served.n_ctx,
                "n_predict": request.options.max_tokens,
                "stop": list(request.options.stop),
                "ignore_eos": request.options.ignore_eos,
            },
            "prompt": self.served.model.tokenizer.decode(request.prompt, special=True),
            "has_new_line": "\n" in request.text,
            "truncated": False,
            "stop_type": stop_type(request, reason),
            "stopping_word": request.stop_text or "",
            "tokens_cached": request.timings.cache_n,
            "timings": timings(request),
        }


def stop_type(request: Request, reason: str) -> str:
    """llama-server's word for why a text ended."""
    if reason == "stop":
        return "eos" if request.stop_text is None else "word"
    return _STOP_TYPES.get(reason, "none")
