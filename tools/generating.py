"""A generation as the command shows it: pieces as they come, one object, one line at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .messages import note

if TYPE_CHECKING:
    from ..engine import Generation, Model, Result


def print_object(generation: Generation) -> None:
    """Run it, then print one JSON object, also when it fails or is interrupted."""
    fault = drain(generation, lambda piece: None)
    print(json.dumps(outcome(generation, fault).as_dict()), flush=True)
    if fault:
        raise fault


def print_text(generation: Generation, prompt: str) -> None:
    """Print the prompt and the text as it comes, and a line on standard error."""
    write(prompt)
    fault = drain(generation, write)
    write("\n")
    if fault is None or _interrupts(fault):
        note(summary(generation.model, outcome(generation, fault)))
    if fault:
        raise fault


def drain(generation: Generation, emit: Callable[[str], None]) -> BaseException | None:
    """Emit all pieces. What broke it off, None for nothing; the text until then is kept."""
    try:
        for piece in generation:
            emit(piece)
    except (Exception, KeyboardInterrupt) as fault:
        # An interrupt may come between two pieces, and `result` would run the rest.
        generation.close()
        return fault
    return None


def outcome(generation: Generation, fault: BaseException | None) -> Result:
    """The result of what was drained. A step that an interrupt broke off is cancelled like one
    before which it came. Raises what else the generation failed with, unless that is `fault`."""
    try:
        return generation.result
    except Exception:
        if fault is None:
            raise
    # Its failure is raised once; from then on there is the result of what was generated.
    found = generation.result
    return replace(found, finish_reason="cancelled", error="") if _interrupts(fault) else found


def _interrupts(fault: BaseException | None) -> bool:
    return isinstance(fault, KeyboardInterrupt)


def write(text: str) -> None:
    """Print text as it comes, without a line break."""
    print(text, end="", flush=True)


def summary(model: Model, result: Result) -> str:
    """One line: tokens and rates, how it ended, on what it ran."""
    times, threads = result.timings, model.backend.threads
    parts = [
        f"prompt {times['prompt_n']} tokens, {times['prompt_per_second']:.1f} t/s",
        f"generated {times['predicted_n']} tokens, {times['predicted_per_second']:.1f} t/s",
        *_drafts(times),
        result.finish_reason,
        f"{model.name} on {model.device}" + (f", threads {threads}" if threads else ""),
    ]
    return " | ".join(parts + ([f"seed {result.seed}"] if result.seed is not None else []))


def _drafts(times: dict[str, Any]) -> list[str]:
    """What speculation did, if it was asked for."""
    if "draft_n" not in times:
        return []
    return [
        f"drafts {times['draft_n_accepted']} of {times['draft_n']} kept in "
        f"{times['draft_rounds']} rounds"
    ]
