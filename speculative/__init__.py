"""Speculative decoding: drafters, acceptance, the round that verifies drafts, statistics."""

from .decoding import SpeculativeDecoding
from .drafter import Ask, Draft, Drafter, Setup, find_drafter, register_drafter
from .options import Speculation
from .speculator import Entry, Speculator
from .statistics import Statistics

__all__ = [
    "Ask",
    "Draft",
    "Drafter",
    "Entry",
    "Setup",
    "Speculation",
    "SpeculativeDecoding",
    "Speculator",
    "Statistics",
    "find_drafter",
    "register_drafter",
]
