"""The CPU attention kernel: rows without company, long contexts, shared splits, bad data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_op import bits
from rig import Rig
from riverrun.graph.errors import BackendError

COUNTS = [*range(1, 18), 33, 65, 260]
Arrays = dict[str, np.ndarray]
CAUSAL = {"mask": "causal", "heads": "grouped"}


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(bits(a), bits(b))


class Context:
    """Keys and values of sequences of equal length, in scattered pages."""

    def __init__(
        self, length: int, *, kv_heads: int, d: int, batch: int = 1, of: str = "f2", page: int = 256
    ) -> None:
        rng = np.random.default_rng(length + d)
        self.page, self.length = page, length
        pages = -(-length // page)
        self.table = i32(rng.permutation(pages * batch + 3)[: pages * batch].reshape(batch, pages))
        shape = ((pages * batch + 3) * page, kv_heads, d)
        self.k = rng.uniform(-1, 1, shape).astype(of)
        self.v = rng.uniform(-1, 1, shape).astype(of)

    def rig(
        self, q: np.ndarray, offsets: Any, positions: Any, threads: int = 1, **attributes: Any
    ) -> Rig:
        """Attention of these queries over this context."""
        arrays = {"q": q, "seq_offsets": i32(offsets), "positions": i32(positions)}
        arrays["block_table"] = self.table[: len(offsets) - 1]
        chosen = {**CAUSAL, "scale": q.shape[2] ** -0.5, "page": self.page, **attributes}
        return Rig("attention", arrays, {"k": self.k, "v": self.v}, threads, **chosen)

    def alone(self, q: np.ndarray, position: int, b: int = 0, **attributes: Any) -> np.ndarray:
        """One query of sequence b in a pass of its own."""
        rig = self.rig(q[None], [0, 1], [position], **attributes)
        return rig.run(block_table=self.table[b : b + 1])[0]

    def rows(self, b: int, first: int, last: int) -> np.ndarray:
        """Pool rows of positions first .. last - 1 of a sequence."""
        j = np.arange(first, last)
        return self.table[b, j // self.page] * self.page + j % self.page

    def exact(self, q: np.ndarray, b: int, first: int, last: int) -> np.ndarray:
        """One query, [H, D], over positions first .. last - 1 in f64."""
        at, group = self.rows(b, first, last), q.shape[0] // self.k.shape[1]
        keys, values = self.k[at].astype(np.float64), self.v[at].astype(np.float64)
        out = []
        for h, x in enumerate(q.astype(np.float64)):
            score = keys[:, h // group] @ x / np.sqrt(len(x))
            weight = np.exp(score - score.max())
            out.append(weight @ values[:, h // group] / weight.sum())
        return np.array(out)


def queries(n: int, heads: int, d: int) -> np.ndarray:
    return np.random.default_rng(n).uniform(-1, 1, (n, heads, d)).astype(np.float32)


FORMS = {
    "causal": {},
    "tiled": {"heads": "tiled"},
    "window": {"window": 37},
    "long window": {"window": 260},
    "full": {"mask": "full"},
    "full, window": {"mask": "full", "window": 37},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("group, d", [(1, 64), (4, 64), (3, 40), (20, 16)])
def test_a_row_of_a_prompt_is_the_row_of_a_step(
    form: dict[str, Any], threads: int, group: int, d: int
) -> None:
    context = Context(300, kv_heads=2, d=d)
    q = queries(300, 2 * group, d)
    whole = context.rig(q, [0, 300], np.arange(300), threads, **form).run()
    full = form.get("mask") == "full"
    for i in (0, 1, 7, 8, 15, 16, 17, 31, 200, 255, 256, 257, 299):
        if full:  # the row and the last of its sequence, whose position bounds what it sees
            pair = context.rig(q[[i, 299]], [0, 2], [i, 299], **form).run()
            assert same(whole[i], pair[0])
        else:
            assert same(whole[i], context.alone(q[i], i, **form))


@pytest.mark.parametrize("of", ["f4", "f2"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_alone_in_any_company(of: str, threads: int) -> None:
    """The row goes last in its sequence, behind it another sequence and padding."""
    context = Context(900, kv_heads=2, d=64, batch=3, of=of)
    mine = queries(1, 8, 64)[0]
    want = context.alone(mine, 700, 1)
    for n in COUNTS:
        q = queries(n, 8, 64)
        before, inside = n // 3, n // 4
        row = before + inside
        after = min(2, n - row - 1)
        q[row] = mine
        offsets = [0, before, row + 1, row + 1 + after]
        positions = np.r_[np.arange(before), 700 - inside + np.arange(inside + 1)]
        positions = np.r_[positions, 3 + np.arange(after), np.full(n - offsets[-1], -1)]
        o = context.rig(q, offsets, positions, threads).run()
        assert same(o[row], want)
        assert not o[offsets[-1] :].any()


@pytest.mark.parametrize("kv_heads, group", [(1, 1), (1, 8), (3, 2)])
@pytest.mark.parametrize("length", [1, 255, 256, 257, 3000])
def test_threads_that_share_the_splits_of_a_row(kv_heads: int, group: int, length: int) -> None:
    context = Context(length, kv_heads=kv_heads, d=128)
    q = queries(1, kv_heads * group, 128)
    want = context.alone(q[0], length - 1)
    for threads in (2, 3, 5):
        assert same(context.rig(q, [0, 1], [length - 1], threads).run()[0], want)
    exact = context.exact(q[0], 0, 0, length)
    assert ((want - exact) ** 2).sum() < 1e-11 * (exact**2).sum()


@pytest.mark.parametrize("page", [1, 7, 100, 256, 1000])
def test_pages_of_any_size_give_the_same_row(page: int) -> None:
    context = Context(700, kv_heads=2, d=32, page=page)
    plain = Context(700, kv_heads=2, d=32)
    for name in ("k", "v"):
        source, target = getattr(context, name), getattr(plain, name)
        target[plain.rows(0, 0, 700)] = source[context.rows(0, 0, 700)]
    q = queries(3, 4, 32)
    o = context.rig(q, [0, 3], [697, 698, 699], window=600).run()
    assert same(o, plain.rig(q, [0, 3], [697, 698, 699], window=600).run())


def test_positions_need_not_follow_one_another() -> None:
    context = Context(600, kv_heads=2, d=64)
    q = queries(6, 4, 64)
    positions = [5, 599, 300, 301, 0, 5]
    o = context.rig(q, [0, 6], positions, 2).run()
    for i, position in enumerate(positions):
        assert same(o[i], context.alone(q[i], position))


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    """With mask "full" the last query bounds what all see; pages beyond are not asked for."""
    context = Context(700, kv_heads=2, d=64)
    context.table[0, 1:] = -1
    q = queries(3, 4, 64)
    o = context.rig(q, [0, 3], [511, 512, 2], mask="full", window=4).run()
    assert not o[:2].any()
    assert same(o[2], context.alone(q[2], 2))


def test_large_scores_and_values_stay_finite() -> None:
    context = Context(2000, kv_heads=1, d=64)
    context.v[...] = 6e4
    q = 1e4 * queries(1, 4, 64)
    o = context.rig(q, [0, 1], [1999], scale=1.0).run()
    assert np.allclose(o, np.float16(6e4), rtol=1e-5)


def test_what_is_not_visible_is_not_read() -> None:
    """NaN beyond the position, behind the window and in other pages; -1 for pages not needed."""
    context = Context(1024, kv_heads=2, d=64)
    q = queries(4, 8, 64)
    positions = [600, 601, 602, 603]
    want = context.rig(q, [0, 4], positions, window=50).run()
    for pool in (context.k, context.v):
        kept = pool[context.rows(0, 551, 604)]
        pool[...] = np.nan
        pool[context.rows(0, 551, 604)] = kept
    context.table[0, [0, 1, 3]] = -1
    for threads in (1, 2):
        assert same(context.rig(q, [0, 4], positions, threads, window=50).run(), want)


BAD = [
    ({"seq_offsets": i32([0, 5, 4])}, r"'seq_offsets' .*ascending.* got 5, 4 at \[2\]"),
    ({"seq_offsets": i32([0, 2, 7])}, r"'seq_offsets' .*at most 6.* got 2, 7 at \[2\]"),
    ({"positions": i32([0, 512, 0, 0, 0, 0])}, r"'positions' .*\[0, 512\), got 512 at \[1\]"),
    ({"positions": i32([0, 0, 0, -1, 0, 0])}, r"'positions' .*\[0, 512\), got -1 at \[3\]"),
    ({"block_table": i32([[0, -1], [1, 2]])}, r"'block_table' .*\[0, 7\).* got -1 at \[0, 1\]"),
    ({"block_table": i32([[0, 1], [7, 2]])}, r"'block_table' .*\[0, 7\).* got 7 at \[1, 0\]"),
]


@pytest.mark.parametrize("wrong, message", BAD, ids=[m for _, m in BAD])
@pytest.mark.parametrize("threads", [1, 2])
def test_bad_indices_are_told(wrong: Arrays, message: str, threads: int) -> None:
    context = Context(512, kv_heads=2, d=64, batch=2)
    rig = context.rig(queries(6, 4, 64), [0, 2, 4], [300, 301, 10, 11, -5, 9999], threads)
    before = rig.run()
    with pytest.raises(BackendError, match=message):
        rig.run(**wrong)
    assert same(rig.run(), before)
