"""What sequences remember between passes: attention pages, recurrent rows, both."""

from .attention import PagedKV
from .base import Memory, Reservation
from .filling import Filler, Part
from .hybrid import HybridMemory
from .layout import Demand, Layout, MemoryBytes, layouts, lays_out
from .recurrent import RecurrentLayout, RecurrentMemory
from .rollback import ROLLBACKS, STRATEGIES, check_rollback, strategies

__all__ = [
    "ROLLBACKS",
    "STRATEGIES",
    "Demand",
    "Filler",
    "HybridMemory",
    "Layout",
    "Memory",
    "MemoryBytes",
    "PagedKV",
    "Part",
    "RecurrentLayout",
    "RecurrentMemory",
    "Reservation",
    "check_rollback",
    "layouts",
    "lays_out",
    "strategies",
]
