"""What sequences remember between passes: attention pages, recurrent rows, both."""

from .attention import PagedKV
from .base import Memory
from .hybrid import HybridMemory
from .recurrent import RecurrentMemory

__all__ = ["HybridMemory", "Memory", "PagedKV", "RecurrentMemory"]
