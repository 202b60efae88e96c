"""Checks that hold for kernels of many ops; each raises AssertionError with what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from one_op import bits, compute, cpu, feed, run_graph, unwritten
from riverrun.graph import Graph, Value, make_op

# One step of the subnormal numbers, times the largest factor that a function puts on one.
FLOOR = 2e-43
SIZES = (*range(1, 18), 33, 65, 260)
ALONE = 20


def check_curve(op: str, want: np.ndarray, x: np.ndarray) -> None:
    """f(x) within a millionth of what it should be, f64 [N], at every x, f32 [N]."""
    error = np.abs(compute(op, x[None])[0] - want)
    allowed = 1e-6 * np.abs(want) + FLOOR
    worst = int((error / allowed).argmax())
    assert error[worst] <= allowed[worst], f"{op}({x[worst]!r}) is off by {error[worst]:.3g}"


def check_edges(op: str, x: np.ndarray, signed: np.ndarray) -> None:
    """Values, NaN and, where `signed`, signs are the reference's, and the bits those of each
    element alone. x: f32 [N]; signed: bool [N]."""
    got = compute(op, x[None])[0]
    want = make_op(op, {}).reference(x[None])[0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=FLOOR)
    signed = signed & ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[signed], np.signbit(want)[signed])
    alone = np.concatenate([compute(op, x[i : i + 1, None])[0] for i in range(x.size)])
    np.testing.assert_array_equal(bits(alone), bits(got))


def check_row_bits(op: str, arrays: Sequence[np.ndarray], attributes: dict[str, Any]) -> None:
    """A row has the same bits alone and among up to 259 others, with 1 and 2 threads. arrays:
    inputs of 260 rows each."""

    def run(*inputs: np.ndarray, threads: int = 1) -> list[np.ndarray]:
        got = compute(op, *inputs, threads=threads, **attributes)
        return list(got) if isinstance(got, tuple) else [got]

    alone = [run(*(a[i : i + 1] for a in arrays)) for i in range(ALONE)]
    for threads in (1, 2):
        for n in SIZES:
            wanted = n % ALONE
            among = [np.concatenate([a[100 : 100 + n - 1], a[wanted : wanted + 1]]) for a in arrays]
            among = [np.roll(a, n // 2, axis=0) for a in among]
            at = (n - 1 + n // 2) % n
            for got, want in zip(run(*among, threads=threads), alone[wanted], strict=True):
                np.testing.assert_array_equal(bits(got[at]), bits(want[0]), err_msg=f"n={n}")


def check_padding(
    op: str, arrays: Sequence[np.ndarray], attributes: dict[str, Any], skipped: bool = True
) -> None:
    """Real rows have the same bits with and without padding rows behind them, which are not
    written where they are `skipped`. arrays: inputs of 6 rows each."""
    whole = compute(op, *arrays, **attributes)
    part = compute(op, *arrays, rows=4, **attributes)
    for a, b in zip(whole, part, strict=True) if isinstance(whole, tuple) else [(whole, part)]:
        np.testing.assert_array_equal(bits(a[:4]), bits(b[:4]))
        if skipped:
            assert unwritten(b[4:])


def check_reused_memory(
    chain: Callable[..., list[Value]], arrays: dict[str, np.ndarray], threads: int
) -> None:
    """A chain of ops ends with the same bits where results may lie on inputs and where all of
    them are kept, and takes less than a quarter of the memory."""
    reusing, keeping = Graph("reusing"), Graph("keeping")
    reusing.output("last", chain(reusing, *feed(reusing, arrays))[-1])
    for i, value in enumerate(chain(keeping, *feed(keeping, arrays))):
        keeping.output(f"step{i}", value)
    plans = [cpu().compile(g).memory.arena_bytes for g in (reusing, keeping)]
    assert plans[0] * 4 < plans[1]
    kept = list(run_graph(keeping, arrays, threads).values())
    got = run_graph(reusing, arrays, threads)["last"]
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(bits(got), bits(kept[-1]))


def check_all(
    g: Graph, arrays: dict[str, np.ndarray], threads: int, want: dict[str, np.ndarray]
) -> None:
    """Every output of a graph is exactly what it should be."""
    got = run_graph(g, arrays, threads)
    assert set(got) == set(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
