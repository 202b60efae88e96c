"""Messages of the Python interface in the words of the command."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache


def in_command_words(text: str) -> str:
    """A message with options in the place of Python's arguments: `model.session(n_rs_seq=3)` and
    `n_rs_seq=3` become `--n-rs-seq 3`, and `(n_ctx)` behind a remedy the shortest name, `(-c)`."""
    flags, short = _flags(max), _flags(min)
    named = "|".join(sorted(flags, key=len, reverse=True))
    argument = rf"\b({named})=('[^']*'|\"[^\"]*\"|[\w.:+-]*[\w:+-]|\.\.\.)"
    called = (
        rf"(?:\bmodel\.(?:session|generate)|\b(?:rr|riverrun)\.load|\bSpeculation)\({argument}\)"
    )

    def option(match: re.Match[str]) -> str:
        value = match[2].strip("'\"")
        return flags[match[1]] if value in ("True", "False") else f"{flags[match[1]]} {value}"

    text = re.sub(argument, option, re.sub(called, option, text))
    return re.sub(rf"\(({named})\)", lambda match: f"({short[match[1]]})", text)


@cache
def _flags(choose: Callable[..., str]) -> dict[str, str]:
    """The name of each field's option, the one of a length that `choose` (max, min) takes."""
    from ..engine import SamplerParams
    from ..engine.session_options import SessionOptions
    from ..graph.fields import options_of
    from ..speculative import Speculation
    from .loading import Loading

    flags = {
        each.name: choose(option.flags, key=len)
        for cls in (SamplerParams, SessionOptions, Speculation, Loading)
        for each, option in options_of(cls)
        if option.flags
    }
    # Python takes its text.
    return {**flags, "chat_template": "--chat-template-file"}
