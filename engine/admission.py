"""A prompt as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.errors import RequestError
from .items import checked_ids

if TYPE_CHECKING:
    from .model import Model


def prompt_ids(
    model: Model, prompt: Any, before: Sequence[int] = (), n_ctx: int | None = None
) -> list[int]:
    """The ids of a prompt given as text or ids. before: tokens that it goes on from; with some, no
    begin token comes first. Raises RequestError for anything else, an empty prompt, and one that
    does not fit behind those in a context of n_ctx."""
    if isinstance(prompt, str):
        ids = model.tokenizer.encode(prompt, add_special=not before, parse_special=True)
    elif isinstance(prompt, Sequence) and any(isinstance(part, (str, bytes)) for part in prompt):
        raise RequestError(
            "the prompt should be one text or its token ids, got a list of texts; "
            "`model.generate_batch` takes several prompts"
        )
    else:
        ids = list(checked_ids(prompt, model.n_vocab))
    if not ids:
        raise RequestError("the prompt has no tokens; give at least one")
    if n_ctx is not None and len(before) + len(ids) > n_ctx:
        first = f"the session has {len(before)} tokens, and " if before else ""
        raise RequestError(
            f"{first}the prompt's {len(ids)} tokens do not fit in a context of {n_ctx}; use a "
            "larger context (n_ctx) or a shorter prompt"
        )
    return ids
