"""Several prompts at once: options for each, and one engine for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..graph.errors import RequestError
from .admission import prompt_ids
from .engine import Engine
from .request import Request
from .result import Result

if TYPE_CHECKING:
    from .model import Model

MOST_AT_ONCE = 16
# Options whose value is a series: a list of such values gives each prompt its own.
SERIES = ("stop", "stop_token_ids")


def spread(prompts: Sequence[Any], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each prompt. Raises RequestError for prompts that are not several, options
    that belong to one generation, and lists of another length."""
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence):
        raise RequestError(f"prompts should be a list of texts or of token ids, got {prompts!r}")
    for name in ("session", "speculator"):
        if name in options:
            raise RequestError(f"{name} is for one generation; generate_batch makes its own memory")
    each: list[dict[str, Any]] = [{} for _ in prompts]
    for name, value in options.items():
        own = _own_values(name, value)
        if own and len(value) != len(prompts):
            raise RequestError(
                f"{name}: a list should have a value for each of {len(prompts)} prompts, got "
                f"{len(value)}"
            )
        for i, mine in enumerate(each):
            mine[name] = value[i] if own else value
    return each


def _own_values(name: str, value: Any) -> bool:
    """Whether a value is a list with one for each prompt."""
    if not isinstance(value, list):
        return False
    return name not in SERIES or any(isinstance(part, (list, tuple)) for part in value)


def run_batch(
    model: Model,
    prompts: Sequence[Any],
    options: Sequence[Mapping[str, Any]],
    n_seqs: int | None,
    n_ctx: int | None,
) -> Iterator[tuple[int, Result]]:
    """(index, result) of every prompt, as they end. Requests are checked before the first runs."""
    ids = [prompt_ids(model, prompt) for prompt in prompts]
    engine = Engine(
        model,
        n_seqs=min(len(ids), MOST_AT_ONCE) if n_seqs is None else n_seqs,
        n_ctx=_context(ids, options) if n_ctx is None else n_ctx,
        draft_max=_longest(model, options),
    )
    try:
        index: dict[Request, int] = {}
        for i, (prompt, asked) in enumerate(zip(ids, options, strict=True)):
            index[engine.submit(prompt, **{"speculative": None, **asked})] = i
    except BaseException:
        engine.close()
        raise
    return _run(engine, index)


def _run(engine: Engine, index: Mapping[Request, int]) -> Iterator[tuple[int, Result]]:
    try:
        while not engine.idle:
            for request, _, finished in engine.step():
                if finished:
                    assert request.result is not None
                    yield index[request], request.result
    finally:
        engine.close()


def _context(ids: Sequence[Sequence[int]], options: Sequence[Mapping[str, Any]]) -> int | None:
    """Tokens that the longest text needs; None, the model's own, where one has no limit."""
    limits = [asked.get("max_tokens", -1) for asked in options]
    if any(not isinstance(n, int) or n < 0 for n in limits):
        return None
    return max(len(prompt) + n for prompt, n in zip(ids, limits, strict=True))


def _longest(model: Model, options: Sequence[Mapping[str, Any]]) -> int:
    """The longest drafts that any of them asks for."""
    openers = [model.opener(asked.get("speculative")) for asked in options]
    return max(getattr(opener, "longest", 0) for opener in openers)
