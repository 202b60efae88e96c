"""Speculative decoding: drafters, acceptance, the rounds that judge drafts, statistics."""

from ..engine.drafting import Entry
from .drafter import Ask, Draft, Drafter, Setup, find_drafter, register_drafter
from .options import Speculation, speculation_of
from .proposing import Proposal
from .speculator import Speculator
from .statistics import Statistics
from .trace import Traced

__all__ = [
    "Ask",
    "Draft",
    "Drafter",
    "Entry",
    "Proposal",
    "Setup",
    "Speculation",
    "Speculator",
    "Statistics",
    "Traced",
    "find_drafter",
    "register_drafter",
    "speculation_of",
]
