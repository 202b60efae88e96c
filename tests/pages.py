"""What the pages of docs/ hold."""

from __future__ import annotations

import re

from paths import ROOT


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
