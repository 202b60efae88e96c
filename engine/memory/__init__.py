"""What sequences remember between passes: attention pages, recurrent rows, both."""

from typing import TYPE_CHECKING

from ...graph.late import late_names

if TYPE_CHECKING:
    from .attention import PagedKV
    from .base import Memory, Reservation
    from .filling import Filler, Part
    from .hybrid import HybridMemory
    from .kinds import ROLLBACKS, check_rollback
    from .layout import Demand, Layout, MemoryBytes, layouts, lays_out
    from .recurrent import RecurrentLayout, RecurrentMemory
    from .rollback import STRATEGIES, strategies

__all__ = late_names(
    __name__,
    {
        ".attention": "PagedKV",
        ".base": "Memory Reservation",
        ".filling": "Filler Part",
        ".hybrid": "HybridMemory",
        ".kinds": "ROLLBACKS check_rollback",
        ".layout": "Demand Layout MemoryBytes layouts lays_out",
        ".recurrent": "RecurrentLayout RecurrentMemory",
        ".rollback": "STRATEGIES strategies",
    },
)
