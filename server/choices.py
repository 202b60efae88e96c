"""Several texts of one request: read as one stream, and told in OpenAI's words."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ..engine.request import Request
from .served import Part, Running, Served


def merged(runs: Sequence[Running]) -> AsyncGenerator[Part, None]:
    """The parts of all texts as they come. Where one fails, all end."""
    return runs[0].parts() if len(runs) == 1 else _merged(runs)


async def _merged(runs: Sequence[Running]) -> AsyncGenerator[Part, None]:
    found: asyncio.Queue[Part | BaseException] = asyncio.Queue()
    tasks = [asyncio.create_task(_read(run, found)) for run in runs]
    try:
        left = len(runs)
        while left:
            news = await found.get()
            if isinstance(news, BaseException):
                raise news
            left -= news.finished
            yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(run: Running, found: asyncio.Queue[Any]) -> None:
    try:
        async for part in run.parts():
            found.put_nowait(part)
    except Exception as error:
        found.put_nowait(error)


def submit_choices(
    served: Served, prompts: Sequence[Sequence[int]], n: int, max_tokens: int, **options: Any
) -> list[Running]:
    """n requests for each prompt; with a seed each of them gets the next one. Raises what
    `Served.submit` raises, and then leaves none."""
    seed, runs = options.pop("seed", None), list[Running]()
    try:
        for tokens in prompts:
            for i in range(n):
                own = {**options, "seed": None if seed is None else (seed + i) % (1 << 64)}
                runs.append(served.submit(tokens, max_tokens, **own))
                runs[-1].choice = len(runs) - 1
    except BaseException:
        for run in runs:
            run.cancel()
        raise
    return runs


def usage(requests: Sequence[Request], n: int = 1) -> dict[str, Any]:
    """OpenAI's `usage` of requests, of which n each share a prompt."""
    prompt = sum(len(request.prompt) for request in requests[::n])
    predicted = sum(len(request.tokens) for request in requests)
    drafted = sum(request.timings.extra.get("draft_n", 0) for request in requests)
    accepted = sum(request.timings.extra.get("draft_n_accepted", 0) for request in requests)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": predicted,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {
            "cached_tokens": sum(request.timings.cache_n for request in requests[::n])
        },
    }
    if drafted:
        found["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return found


def timings(request: Request) -> dict[str, Any]:
    """llama-server's `timings` of a request that has ended, with the seed of its draws."""
    found = request.timings.as_dict()
    sampler = request.sampler
    if not sampler.params.greedy:
        found["seed"] = sampler.seed
    return found


def finish_reason(request: Request) -> str:
    """OpenAI's word for why a text ended."""
    result = request.result
    return "length" if result is not None and result.finish_reason == "length" else "stop"


def chat_logprobs(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """OpenAI's `logprobs` of chats."""
    return {"content": list(map(full_logprob, entries))}


def full_logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token, its log-probability and those of the likeliest, in OpenAI's words."""
    return {**named_logprob(entry), "top_logprobs": list(map(named_logprob, entry["top"]))}


def named_logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A token and its log-probability; JSON has no infinity."""
    return {
        "token": entry["text"],
        "id": entry["token"],
        "logprob": max(entry["logprob"], -1e4),
        "bytes": entry["bytes"],
    }


def text_logprobs(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
    """OpenAI's `logprobs` of completions. offset: characters in front of the first token."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["text"])
    return {
        "tokens": [entry["text"] for entry in entries],
        "token_logprobs": [max(entry["logprob"], -1e4) for entry in entries],
        "top_logprobs": [{t["text"]: max(t["logprob"], -1e4) for t in e["top"]} for e in entries],
        "text_offset": offsets,
    }


def entries_of(request: Request, tokens: tuple[int, int]) -> list[dict[str, Any]]:
    """The log-probabilities of some of a request's tokens."""
    return (request.logprobs or [])[slice(*tokens)]


def header(kind: str, prefix: str, model: str) -> dict[str, Any]:
    """The fields that all objects of one answer begin with."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": "riverrun",
    }
