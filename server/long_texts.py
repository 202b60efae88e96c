"""Texts far beyond the context: encoding one takes some 200 times its bytes of memory, so it is
told by its beginning."""

from __future__ import annotations

from .served import Served

LEAST = 1 << 16  # characters that are encoded whatever the context


def beginning(served: Served, text: str) -> tuple[str, int] | None:
    """The beginning of a text, and how many tokens it has, more than twice as many as the context
    holds, so that the rest cannot make them fit; None for a text that may. Takes its time: for a
    thread. Raises RequestError for text that is not valid Unicode."""
    size = max(8 * served.n_ctx, LEAST)
    while size < len(text):
        begun = text[:size]
        found = len(served.model.tokenizer.encode(begun, parse_special=True))
        if found > 2 * served.n_ctx:
            return begun, found
        size *= 2
    return None


def check_text(served: Served, text: str) -> None:
    """Raise ApiError for a text that is far too long for the context. For a thread."""
    found = beginning(served, text)
    if found is not None:
        raise served.too_long(found[1], "at least ")
