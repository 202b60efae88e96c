"""What a request has come to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..graph.errors import RiverrunError


@dataclass(frozen=True)
class Result:
    """A finished text. tokens: generated ids without the end token; finish_reason: "stop" (end
    token, stop token or stop text), "length" (max_tokens or context), "cancelled" or "error", whose
    message is in `error`; seed: of the draws, None for greedy decoding; timings: the fields of
    Timings.as_dict; logprobs: `Logprobs.entries` where they were asked for, one for each of
    `tokens`."""

    text: str
    tokens: list[int]
    prompt_tokens: int
    finish_reason: str
    timings: dict[str, Any]
    model: str
    device: str
    seed: int | None = None
    error: str = ""
    logprobs: list[dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON; logprobs only where they were asked for."""
        found = asdict(self)
        if self.logprobs is None:
            del found["logprobs"]
        return found


def message_of(error: BaseException) -> str:
    """What an exception says, with its type where it is none of ours."""
    known = isinstance(error, RiverrunError)
    return str(error) if known else f"{type(error).__name__}: {error}"
