"""Filling a hole in a text, by the control tokens that a model was trained with for it."""

from __future__ import annotations

from collections.abc import Sequence

from .failures import bad_request
from .long_texts import LEAST
from .served import Served


def fill_in(
    served: Served,
    before: str,
    after: str,
    extra: Sequence[tuple[str, str]] = (),
    prompt: str = "",
) -> list[int]:
    """The tokens that ask for what is missing between two texts. extra: other files, each with its
    name, which come first; prompt: text with which the missing part begins. Of texts too long for
    the context, what is near the hole stays. Raises ApiError for a model without such tokens."""
    tokenizer = served.model.tokenizer
    roles = tokenizer.fim_ids
    if not {"pre", "suf", "mid"} <= roles.keys():
        raise bad_request(
            f"{served.name} has no tokens for filling in (fim_pre, fim_suf, fim_mid); it was not "
            "trained for that"
        )

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False) if text else []

    room = served.n_ctx - served.n_ctx // 4 - 8
    # What is further from the hole than that many characters is not encoded: it would be cut off.
    near = max(LEAST, 8 * room)
    behind = ids(after[:near])[: room // 4]
    ahead = ids(before[-near:])[-(room - len(behind)) :]
    inner = [roles["pre"], *ahead, roles["suf"], *behind, roles["mid"], *ids(prompt)]
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    return [*first, *_others(served, extra, room - len(inner)), *inner]


def _others(served: Served, extra: Sequence[tuple[str, str]], room: int) -> list[int]:
    """Other files as far as there is room, the last ones first to be kept."""
    tokenizer, found = served.model.tokenizer, list[int]()
    mark = tokenizer.fim_ids.get("sep")
    for name, text in reversed(extra):
        head = [mark] if mark is not None else []
        shown = f"{name}\n{text}\n" if mark is not None else f"\n\n--- {name} ---\n\n{text}\n"
        part = [*head, *tokenizer.encode(shown, add_special=False)]
        if len(part) + len(found) > room:
            break
        found = part + found
    return found
