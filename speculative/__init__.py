"""Speculative decoding: drafters, acceptance, the rounds that judge drafts, statistics."""

from typing import TYPE_CHECKING

from ..graph.late import late_names

if TYPE_CHECKING:
    from ..engine.drafting import Entry
    from .drafter import Ask, Draft, Drafter, Setup, find_drafter, register_drafter
    from .options import Speculation, speculation_of
    from .proposing import Proposal
    from .speculator import Speculator
    from .statistics import Statistics
    from .trace import Traced

__all__ = late_names(
    __name__,
    {
        "..engine.drafting": "Entry",
        ".drafter": "Ask Draft Drafter Setup find_drafter register_drafter",
        ".options": "Speculation speculation_of",
        ".proposing": "Proposal",
        ".speculator": "Speculator",
        ".statistics": "Statistics",
        ".trace": "Traced",
    },
)
