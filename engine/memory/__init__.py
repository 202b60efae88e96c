"""What sequences remember between passes: attention pages, recurrent rows, both."""

from .attention import PagedKV
from .base import Memory, Reservation
from .hybrid import HybridMemory
from .recurrent import RecurrentLayout, RecurrentMemory
from .rollback import ROLLBACKS, check_rollback, strategies

__all__ = [
    "ROLLBACKS",
    "HybridMemory",
    "Memory",
    "PagedKV",
    "RecurrentLayout",
    "RecurrentMemory",
    "Reservation",
    "check_rollback",
    "strategies",
]
