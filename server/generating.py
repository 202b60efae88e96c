"""What the endpoints that generate text share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..engine.items import checked_ids
from .choices import usage
from .failures import as_api_error, bad_request, openai_error
from .http import sse
from .long_texts import check_text
from .served import Running, Served
from .service import Service
from .wire.openai import ChatBody, CompletionBody
from .wire.sampling import Sampling

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
SHORT_TEXT = 2048  # characters, whose tokens are found in some tenths of a millisecond


async def apart(work: Callable[..., T], *arguments: Any) -> T:
    """What a function that takes its time returns, run on a thread."""
    return await asyncio.to_thread(work, *arguments)


async def apart_if_long(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """What a function returns that takes its time with a text of `size` characters, run on a thread
    where that is long: going there and back takes as long as a short one."""
    return work(*arguments) if size <= SHORT_TEXT else await apart(work, *arguments)


def sampling_options(service: Service, served: Served, body: Sampling) -> dict[str, Any]:
    """Keyword arguments of `Engine.submit` that a body's sampling fields ask for. Raises ApiError
    and RequestError."""
    cached = body.cache_prompt
    return {
        **body.chosen(served.model, service.defaults),
        "stop": body.stops(),
        "ignore_eos": bool(body.ignore_eos),
        "cache_prompt": True if cached is None else cached,
        **served.drafts(body.speculative, body.speculative_n_max),
    }


def prompts_of(served: Served, prompt: Any) -> list[list[int]]:
    """The token ids of a prompt, or of several: texts, or lists of ids. Raises ApiError and
    RequestError."""
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    listed: Sequence[Any] = prompt if several else [prompt]
    return [tokens_of(served, each) for each in listed]


def tokens_of(served: Served, prompt: Any) -> list[int]:
    """The token ids of one prompt: a text, or a list of ids and texts."""
    model = served.model
    if isinstance(prompt, str):
        check_text(served, prompt)
        return model.tokenize(prompt)
    if isinstance(prompt, list) and any(isinstance(part, str) for part in prompt):
        found = list[int]()
        for i, part in enumerate(prompt):
            if isinstance(part, str):
                check_text(served, part)
                found += model.tokenizer.encode(part, add_special=i == 0, parse_special=True)
            else:
                found += checked_ids([part], model.n_vocab)
        return found
    if not isinstance(prompt, list):
        raise bad_request(f"prompt: expected a text or token ids, got {prompt!r}", "prompt")
    return list(checked_ids(prompt, model.n_vocab))


def stream_end(
    body: CompletionBody | ChatBody, runs: Sequence[Running], begin: Mapping[str, Any]
) -> bytes:
    """What follows the last text of OpenAI's streams. begin: fields that all its events have."""
    options = body.stream_options
    if options is None or not options.include_usage:
        return DONE
    found = usage([run.request for run in runs], body.n)
    return sse({**begin, "choices": [], "usage": found}) + DONE


def broken_stream(error: BaseException) -> bytes:
    """The last event of a stream that failed."""
    return sse(openai_error(as_api_error(error)))
