"""How full the memory of an engine is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .parked import Parked
from .sequences import Sequences


class Occupancy(NamedTuple):
    """sequences, active: sequences in all, and those that requests have; queued: requests that
    wait; pages, pages_free: pages of attention memory in all, and those that nobody has or only
    texts that nobody is at work on; state_bytes: of states kept along prompts; tokens_cached: of
    texts that nobody is at work on; host_bytes: of texts in host memory; host_copied: bytes that
    were copied there so far."""

    sequences: int
    active: int
    queued: int
    pages: int
    pages_free: int
    state_bytes: int
    tokens_cached: int
    host_bytes: int
    host_copied: int


def occupancy(sequences: Sequences, parked: Parked, idle: Sequence[int], queued: int) -> Occupancy:
    """Of these sequences and parked texts. idle: those that no request has."""
    storage, n = sequences.storage, sequences.n_seqs
    pages, free = storage.memory.page_counts([*idle, *parked.places])
    return Occupancy(
        sequences=n,
        active=n - len(idle),
        queued=queued,
        pages=pages,
        pages_free=free,
        state_bytes=storage.prompt_states.nbytes,
        tokens_cached=parked.n_tokens + sum(storage.memory.length(seq) for seq in idle),
        host_bytes=parked.host.nbytes,
        host_copied=parked.host.copied_bytes,
    )
