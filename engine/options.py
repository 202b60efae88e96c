"""What a request may ask for besides how its tokens are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.errors import RequestError
from ..models.tokenizer import Tokenizer, TokenType
from .items import checked_ids, checked_integer

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class Options:
    """What ends a text: a number of tokens (-1: none), stop texts, tokens that stop, the model's
    end tokens unless ignored.

    cache_prompt: the prompt is the whole text, of which the sequence keeps what it already holds;
    else it continues what the sequence holds. logprobs: how many of the likeliest tokens to report
    beside each chosen one, None for no report. shown_token_ids: control tokens whose text is part
    of what is generated; draft_max: most drafts of a round, None for as many as its
    drafters give. Raises RequestError for values out of range."""

    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_prompt: bool = False
    logprobs: int | None = None
    shown_token_ids: tuple[int, ...] = ()
    draft_max: int | None = None

    def __post_init__(self) -> None:
        if checked_integer(self.max_tokens, "max_tokens") < -1:
            raise RequestError(f"max_tokens should be -1, 0 or more, got {self.max_tokens}")
        if self.logprobs is not None and checked_integer(self.logprobs, "logprobs") < 0:
            raise RequestError(f"logprobs should be 0 or more, or None, got {self.logprobs}")
        if self.draft_max is not None and checked_integer(self.draft_max, "draft_max") < 0:
            raise RequestError(f"draft_max should be 0 or more, or None, got {self.draft_max}")


def make_options(
    model: Model,
    max_tokens: int,
    stop: str | Sequence[str],
    stop_token_ids: Sequence[int],
    ignore_eos: bool,
    cache_prompt: bool,
    logprobs: int | None = None,
    shown_token_ids: Sequence[int] = (),
    draft_max: int | None = None,
) -> Options:
    """Options from a caller's arguments. A stop text that spells out a control token is matched as
    that token, too: its text never shows. Raises RequestError."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    ids = {*checked_ids(stop_token_ids, model.n_vocab)}
    ids.update(_control_tokens(model.tokenizer, stops))
    shown = tuple(checked_ids(shown_token_ids, model.n_vocab))
    return Options(
        max_tokens,
        stops,
        tuple(sorted(ids)),
        ignore_eos,
        cache_prompt,
        logprobs,
        shown,
        draft_max,
    )


def _control_tokens(tokenizer: Tokenizer, texts: Sequence[Any]) -> list[int]:
    found = (tokenizer.token_id(text) for text in texts if isinstance(text, str))
    return [t for t in found if t is not None and tokenizer.token_type(t) == TokenType.CONTROL]
