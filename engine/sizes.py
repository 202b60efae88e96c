"""Numbers of bytes for people."""

from __future__ import annotations


def mib(n: int) -> str:
    """A number of bytes for people."""
    return f"{n / 2**20:.1f} MiB"
