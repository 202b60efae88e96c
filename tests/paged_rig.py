"""An attention memory with pools that tests write to as a pass would."""

from __future__ import annotations

import numpy as np
from riverrun.backends import Pools
from riverrun.engine.memory import PagedKV, Reservation
from riverrun.graph import TensorSpec
from riverrun.graph.dtype import DType, f32
from riverrun.models.step import PAGE

STATES = {"cache_k.0": 2, "cache_v.0": 3}  # name: numbers in a row


class CountingPools(Pools):
    """Remembers which parts were copied."""

    def __init__(self, specs: dict[str, TensorSpec]) -> None:
        super().__init__(specs)
        self.copied: list[tuple[str, object, object]] = []

    def copy(self, name: str, src: object, dst: object) -> None:
        self.copied.append((name, src, dst))
        super().copy(name, src, dst)  # type: ignore[arg-type]


def memory(
    n_seqs: int,
    n_pages: int,
    n_ctx: int,
    window: int = 0,
    slack: int = 0,
    v_type: DType = f32,
    layer: int = 0,
) -> PagedKV:
    specs = {
        f"cache_k.{layer}": TensorSpec((n_pages * PAGE, 2, 1)),
        f"cache_v.{layer}": TensorSpec((n_pages * PAGE, 1, 3), v_type),
    }
    return PagedKV(n_seqs, n_pages, n_ctx, CountingPools(specs), specs, window, slack)


def write(kv: PagedKV, seq: int, start: int, values: list[int]) -> None:
    """What a pass does: put a value for each position into every state."""
    rows = kv.rows(seq, start, len(values))
    for sign, name in zip((1, -1), kv.states, strict=True):
        kv.pools.array(name)[rows] = sign * np.array(values)[:, None, None]


def read(kv: PagedKV, seq: int, start: int, stop: int) -> list[int]:
    rows = kv.rows(seq, start, stop - start)
    k, v = (
        kv.pools.array(name)[rows].reshape(len(rows), w)
        for name, w in zip(kv.states, STATES.values(), strict=True)
    )
    assert (k == k[:, :1]).all() and (v == -k[:, :1]).all()
    found: list[int] = k[:, 0].astype(int).tolist()
    return found


def grow(kv: PagedKV, seq: int, n: int, first: int = 0) -> None:
    """Commit n tokens with the values first, first + 1, ..."""
    start = kv.length(seq)
    kv.reserve([Reservation(seq, n)])
    write(kv, seq, start, list(range(first, first + n)))
    kv.commit(seq, n)


def everything(kv: PagedKV) -> tuple[object, ...]:
    """All that a refused call must leave alone."""
    seqs = range(kv.n_seqs)
    owners = [kv.pages.owners(p) for p in range(total_pages(kv))]
    return (
        [(kv.length(s), kv.pending(s), kv.held(s)) for s in seqs],
        kv.block_table.tolist(),
        (kv.pages.free, owners),
        [kv.pools.array(name).tobytes() for name in kv.states],
    )


def total_pages(kv: PagedKV) -> int:
    return kv.pools.specs[kv.states[0]].shape[0] // PAGE


def check_pages(kv: PagedKV) -> None:
    """No page is lost, each is counted as often as it is held, entries not held are 0."""
    holders = [0] * total_pages(kv)
    for seq in range(kv.n_seqs):
        for at, page in enumerate(kv.block_table[seq].tolist()):
            if at in kv.held(seq):
                holders[page] += 1
            else:
                assert page == 0
    assert [kv.pages.owners(p) for p in range(total_pages(kv))] == holders
    assert kv.pages.free == holders.count(0)
