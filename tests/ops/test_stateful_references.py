"""The references of the ops with state, against formulations written independently of them."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant
import riverrun.ops  # noqa: F401
from paths import DATA
from riverrun.graph import OPS, HostTensor, TensorSpec, dtype, host_tensor, make_op
from riverrun.graph.case import BoundCase, op_cases
from riverrun.graph.errors import BackendError

Arrays = dict[str, Any]
STATEFUL = ("write_rows", "attention", "ssm_conv", "gated_delta_net")


def small_cases(name: str) -> list[BoundCase]:
    return [c for c in op_cases(OPS[name]) if "perf" not in c.tags]


def arrays_of(case: BoundCase) -> Arrays:
    names = [n.strip("?") for n in case.op.inputs]
    drawn = [t.decoded() if t is not None else None for t in case.draw()]
    return dict(zip(names, drawn, strict=True))


def run(op: str, given: Arrays, **attributes: Any) -> Any:
    cls = OPS[op]
    names = [n.strip("?") for n in cls.inputs]
    return make_op(op, attributes).reference(*(given.get(n) for n in names))


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Recurrence:
    """One of the two recurrent ops with random tokens, run pass by pass over any sequences."""

    def __init__(self, op: str, n: int, seed: int, kda: bool = False) -> None:
        rng = np.random.default_rng(seed)

        def draw(*shape: int) -> np.ndarray:
            return rng.uniform(-1, 1, shape).astype(np.float32)

        self.op = op
        if op == "ssm_conv":
            self.attributes, self.fixed, self.width = {}, {"w": draw(5, 4)}, 15
            self.tokens = {"x": draw(n, 5)}
            self.state = "tail"
            return
        hk, hv, s = 2, 4, 8
        q, k = draw(n, hk, s), draw(n, hk, s)
        self.attributes, self.fixed, self.width = {"heads": "tiled"}, {}, hv * s * s
        self.tokens = {
            "q": q / np.linalg.norm(q, axis=-1, keepdims=True),
            "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
            "v": draw(n, hv, s),
            "g": -3 * np.abs(draw(n, hv, s) if kda else draw(n, hv)),
            "beta": np.abs(draw(n, hv)),
        }
        self.state = "state"

    def __call__(
        self,
        state: np.ndarray,
        chosen: list[list[int]],
        rows: list[int] | None = None,
        start: list[int] | None = None,
        head: list[int] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """One pass; chosen: the token numbers that each sequence runs."""
        flat = [t for tokens in chosen for t in tokens]
        given = {name: values[flat] for name, values in self.tokens.items()} | self.fixed
        given["seq_offsets"] = np.cumsum([0, *map(len, chosen)]).astype(np.int32)
        given["state_rows"] = i32(*(rows or range(len(chosen))))
        given |= {self.state: state}
        if start is not None and head is not None:
            given |= {"start": i32(*start), "head": i32(*head)}
        return run(self.op, given, **self.attributes)

    def history(self, tokens: list[int], state: np.ndarray) -> list[np.ndarray]:
        """The states [width] before the first of these tokens and after each one."""
        states = [state]
        for t in tokens:
            states.append(self(states[-1][None], [[t]])[1][0])
        return states


RECURRENT = [("ssm_conv", False), ("gated_delta_net", False), ("gated_delta_net", True)]
recurrent = pytest.mark.parametrize(("op", "kda"), RECURRENT)


@pytest.mark.parametrize("name", STATEFUL)
def test_cases_fit_the_shape_rule_and_leave_inputs_alone(name: str) -> None:
    for case in small_cases(name):
        drawn = case.draw()
        specs = [
            TensorSpec(t.spec.shape, t.spec.dtype, case.strides(i)) if t is not None else None
            for i, t in enumerate(drawn)
        ]
        want = case.op.infer(*specs)
        given = arrays_of(case)
        before = {n: None if a is None else a.copy() for n, a in given.items()}
        got = case.op.reference(*given.values())
        want, got = (x if isinstance(x, tuple) else (x,) for x in (want, got))
        for spec, out in zip(want, got, strict=True):
            assert out.shape == spec.shape, case.id
            assert out.dtype == (spec.dtype.numpy or np.float32), case.id
            if not case.id.endswith("large]"):
                assert np.isfinite(out).all(), case.id
            assert not any(np.shares_memory(out, a) for a in given.values() if a is not None)
        for n, values in given.items():
            np.testing.assert_array_equal(values, before[n], f"{n} of {case.id}")


@pytest.mark.parametrize("name", ["ssm_conv", "gated_delta_net"])
def test_padding_rows_are_zero_and_only_declared_planes_change(name: str) -> None:
    for case in small_cases(name):
        given = arrays_of(case)
        out, after, *_ = case.op.reference(*given.values())
        assert not out[given["seq_offsets"][-1] :].any()
        state = given["tail" if name == "ssm_conv" else "state"]
        lengths = np.diff(given["seq_offsets"])
        written = np.zeros(state.shape[:-1], bool).reshape(len(state), -1)
        planes = written.shape[1]
        head = given["head"] if given["head"] is not None else np.zeros(len(lengths), int)
        if given["log"] is not None:
            lengths = given["n_replay"] + given["n_direct"]
        for b, row in enumerate(given["state_rows"]):
            for j in range(min(lengths[b], planes)):
                written[row, (head[b] + j) % planes] = True
        changed = (after != state).any(-1).reshape(written.shape)
        assert not (changed & ~written).any(), case.id


def chunked(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
    chunk: int,
) -> tuple[np.ndarray, np.ndarray]:
    """One head in f64, by a triangular solve a chunk. q, k, v, g: [T, S]; state: [keys, values]."""
    outs = []
    for at in range(0, len(q), chunk):
        qc, kc, vc, bc = (a[at : at + chunk] for a in (q, k, v, beta))
        total = np.cumsum(g[at : at + chunk], 0)
        lower = np.tri(len(qc), dtype=bool)
        gap = np.where(lower[..., None], total[:, None] - total[None], -np.inf)
        seen = np.exp(gap)
        keys = np.einsum("id,jd,ijd->ij", kc, kc, seen)
        mixed = np.eye(len(qc)) + np.tril(bc[:, None] * keys, -1)
        u = np.linalg.solve(mixed, bc[:, None] * vc)
        w = np.linalg.solve(mixed, bc[:, None] * kc * np.exp(total))
        wrote = u - w @ state
        reads = np.einsum("id,jd,ijd->ij", qc, kc, seen)
        outs.append((qc * np.exp(total)) @ state + reads @ wrote)
        kept = np.exp(total[-1])[:, None] * state
        state = kept + (kc * np.exp(total[-1] - total)).T @ wrote
    return np.concatenate(outs), state


@pytest.mark.parametrize("heads", ["tiled", "grouped"])
@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize("lowest", [-20.0, -0.5, -0.01])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130])
def test_delta_net_equals_the_chunked_form(n: int, lowest: float, kda: bool, heads: str) -> None:
    rng = np.random.default_rng(n)
    hk, hv, s = 2, 4, 16
    q, k = (rng.standard_normal((n, hk, s)) for _ in range(2))
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    v, beta = rng.uniform(-0.3, 5, (n, hv, s)), rng.uniform(0, 1, (n, hv))
    g = rng.uniform(lowest, 0, (n, hv, s) if kda else (n, hv))
    state = rng.uniform(-1, 1, (1, hv, s, s))
    given = dict(q=q, k=k, v=v, g=g, beta=beta, state=state.reshape(1, -1))
    given = {name: a.astype(np.float32) for name, a in given.items()}
    given |= dict(seq_offsets=i32(0, n), state_rows=i32(0))
    o, after = run("gated_delta_net", given, heads=heads)
    for h in range(hv):
        m = {"tiled": [0, 1, 0, 1], "grouped": [0, 0, 1, 1]}[heads][h]
        gate = np.broadcast_to(g[:, h] if kda else g[:, h, None], (n, s))
        operands = (q[:, m] / np.sqrt(s), k[:, m], v[:, h], gate, beta[:, h], state[0, h].T)
        for chunk in (16, 64):
            want, last = chunked(*operands, chunk)
            np.testing.assert_allclose(o[:, h], want, rtol=1e-4, atol=1e-5)
            got = after.reshape(hv, s, s)[h].T
            np.testing.assert_allclose(got, last, rtol=1e-4, atol=1e-5)


def test_delta_net_by_hand() -> None:
    one = lambda x: np.full((1, 1, 1), x, np.float32)  # noqa: E731
    given = dict(q=one(2), k=one(1), v=one(3), g=one(np.log(0.5))[0], beta=one(0.5)[0])
    given |= dict(state=one(2)[0], seq_offsets=i32(0, 1), state_rows=i32(0))
    o, after = run("gated_delta_net", given, heads="tiled")
    assert (o.item(), after.item()) == (4.0, 2.0)
    assert run("gated_delta_net", given, heads="tiled", scale=0.25)[0].item() == 1.0


def test_delta_net_state_is_value_major() -> None:
    key, value = np.zeros((2, 1, 1, 4), np.float32)
    key[0, 0, 1], value[0, 0, 2] = 1, 5
    given = dict(q=key, k=key, v=value, g=np.zeros((1, 1), np.float32))
    given |= dict(beta=np.ones((1, 1), np.float32), state=np.zeros((1, 16), np.float32))
    given |= dict(seq_offsets=i32(0, 1), state_rows=i32(0))
    after = run("gated_delta_net", given, heads="tiled")[1].reshape(4, 4)
    assert after[2, 1] == 5 and np.count_nonzero(after) == 1


def rollback_spec() -> ModuleType:
    path = DATA / "rollback_spec.py"
    spec = importlib.util.spec_from_file_location("rollback_spec", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ops_follow_the_rollback_specification() -> None:
    """Rounds with partial commits: outputs and every valid plane of both states, at every pass."""
    spec = rollback_spec()
    rng = np.random.default_rng(3)
    kernel = rng.standard_normal((spec.W, spec.C), np.float32)
    planes = 4
    snapshots = spec.Snapshots(planes)
    tail = np.zeros((1, planes, (spec.W - 1) * spec.C), np.float32)
    state = np.zeros((1, planes, spec.H * spec.S * spec.S), np.float32)
    for turn in range(40):
        t = int(rng.integers(1, planes + 3))
        u = rng.standard_normal((t, spec.C), np.float32)
        g, beta = -rng.uniform(0, 3, (t, spec.H)), rng.uniform(0, 1, (t, spec.H))
        g, beta = g.astype(np.float32), beta.astype(np.float32)
        start = snapshots.start
        want = snapshots.verify(kernel, list(zip(u, g, beta, strict=True)))
        where = dict(seq_offsets=i32(0, t), state_rows=i32(0))
        where |= dict(start=i32(start), head=i32(snapshots.head))
        y, tail = run("ssm_conv", dict(x=u, w=kernel.T, tail=tail) | where)
        q, k, v = spec.silu(y).reshape(t, 3, spec.H, spec.S).transpose(1, 0, 2, 3)
        q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
        given = dict(q=q, k=k, v=v, g=g, beta=beta, state=state) | where
        o, state = run("gated_delta_net", given, heads="tiled")
        np.testing.assert_allclose(o, want, rtol=1e-4, atol=1e-5)
        for j in range(snapshots.depth + 1):
            plane = (snapshots.head + j) % planes
            expected = snapshots.planes[plane]
            np.testing.assert_array_equal(tail[0, plane], expected.tail.reshape(-1))
            np.testing.assert_allclose(
                state[0, plane], expected.M.reshape(-1), rtol=1e-4, atol=1e-5, err_msg=str(turn)
            )
        snapshots.commit(int(rng.integers(max(0, t - snapshots.depth), t + 1)))


@recurrent
@pytest.mark.parametrize("planes", [0, 1, 3, 18])
def test_one_pass_equals_passes_of_one_token(op: str, kda: bool, planes: int) -> None:
    n = 7
    run_pass = Recurrence(op, n, seed=planes, kda=kda)
    rng = np.random.default_rng(9)
    first = rng.uniform(-1, 1, (1, max(planes, 1), run_pass.width)).astype(np.float32)
    ring = lambda x: dict(start=[x[0]], head=[x[1]]) if planes else {}  # noqa: E731
    state = first if planes else first[:, 0]
    whole, after = run_pass(state, [list(range(n))], **ring((0, -n % max(planes, 1))))
    for cut in range(1, n):
        left, middle = run_pass(state, [list(range(cut))], **ring((0, -cut % max(planes, 1))))
        at = -cut % max(planes, 1)
        rest = ring((at, -n % max(planes, 1)))
        right, end = run_pass(middle, [list(range(cut, n))], **rest)
        assert np.array_equal(np.concatenate([left, right]), whole)
        assert np.array_equal(end, after)
    for t in range(n):
        plane, to = -t % max(planes, 1), -(t + 1) % max(planes, 1)
        out, state = run_pass(state, [[t]], **ring((plane, to)))
        assert np.array_equal(out[0], whole[t])
    assert np.array_equal(state, after)


@recurrent
def test_one_plane_equals_no_planes(op: str, kda: bool) -> None:
    run_pass = Recurrence(op, 6, seed=1, kda=kda)
    flat = np.random.default_rng(2).uniform(-1, 1, (2, run_pass.width)).astype(np.float32)
    chosen = [[0, 1, 2, 3], [4, 5]]
    want, want_state = run_pass(flat, chosen, rows=[1, 0])
    got, state = run_pass(flat[:, None], chosen, rows=[1, 0], start=[0, 0], head=[0, 0])
    assert np.array_equal(got, want) and np.array_equal(state[:, 0], want_state)


@recurrent
def test_ring_over_many_passes_with_rollback(op: str, kda: bool) -> None:
    """Batched sequences of unequal length commit part of each pass; every plane within reach holds
    the state that plain stepping left there, also from earlier passes."""
    planes, rows, rng = 4, [3, 0, 2], np.random.default_rng(5)
    run_pass = Recurrence(op, 400, seed=6, kda=kda)
    state = np.zeros((5, planes, run_pass.width), np.float32)
    state[1], state[4] = 7, 8
    history = [[np.zeros(run_pass.width, np.float32)] for _ in rows]
    start, depth, token = [0] * 3, [0] * 3, 0
    for _ in range(25):
        chosen = []
        for _ in rows:
            t = int(rng.integers(0, planes + 2))
            chosen.append(list(range(token, token + t)))
            token += t
        head = [(s - len(c)) % planes for s, c in zip(start, chosen, strict=True)]
        _, state = run_pass(state, chosen, rows=rows, start=start, head=head)
        for b, tokens in enumerate(chosen):
            history[b] += run_pass.history(tokens, history[b][-1])[1:]
            depth[b] = min(depth[b] + len(tokens), planes - 1)
            for j in range(depth[b] + 1):
                plane = state[rows[b], (head[b] + j) % planes]
                assert np.array_equal(plane, history[b][-1 - j])
            back = int(rng.integers(0, depth[b] + 1))
            start[b], depth[b] = (head[b] + back) % planes, depth[b] - back
            del history[b][len(history[b]) - back :]
    assert (state[1] == 7).all() and (state[4] == 8).all()


@pytest.mark.parametrize("w", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 64])
def test_conv_equals_numpy_convolution(n: int, w: int) -> None:
    rng = np.random.default_rng(n)
    x, taps, tail = (
        rng.standard_normal(shape, np.float32) for shape in ((n, 3), (3, w), (w - 1, 3))
    )
    where = dict(seq_offsets=i32(0, n), state_rows=i32(0))
    y, after = run("ssm_conv", dict(x=x, w=taps, tail=tail.reshape(1, -1)) | where)
    line = np.concatenate([tail, x]).astype(np.float64)
    for c in range(3):
        want = np.convolve(line[:, c], taps[c, ::-1].astype(np.float64), "valid")
        np.testing.assert_allclose(y[:, c], want, rtol=1e-6, atol=1e-6)
    assert np.array_equal(after.reshape(w - 1, 3), line[-(w - 1) :].astype(np.float32))


def dense_attention(case: BoundCase, given: Arrays) -> np.ndarray:
    """The whole score matrix of each sequence at once, in f64."""
    op: Any = case.op
    q = given["q"].astype(np.float64)
    out = np.zeros((*q.shape[:2], given["v"].shape[2]))
    groups = q.shape[1] // given["k"].shape[1]
    for b, (lo, hi) in enumerate(zip(given["seq_offsets"], given["seq_offsets"][1:], strict=False)):
        if lo == hi:
            continue
        at = given["positions"][lo:hi]
        pages = np.maximum(given["block_table"][b], 0)
        length = int(at.max()) + 1
        keys, values = (
            given[n].reshape(-1, op.page, *given[n].shape[1:])[pages].astype(np.float64)
            for n in ("k", "v")
        )
        keys, values = (a.reshape(-1, *a.shape[2:])[:length] for a in (keys, values))
        spread = (lambda a: np.repeat(a, groups, 1)) if op.heads == "grouped" else None
        spread = spread or (lambda a: np.tile(a, (1, groups, 1)))
        away = at[:, None] - np.arange(length)[None]
        hidden = (away < 0) if op.mask == "causal" else np.zeros(away.shape, bool)
        hidden |= (away >= op.window) if op.window else False
        scores = np.einsum("ihd,jhd->hij", q[lo:hi], spread(keys)) * op.scale
        if op.softcap:
            scores = op.softcap * np.tanh(scores / op.softcap)
        scores = np.where(hidden[None], -np.inf, scores)
        # A sink is one more score whose value is zero.
        sinks = given.get("sinks")
        each = np.full(q.shape[1], -np.inf) if sinks is None else sinks.astype(np.float64)
        sink = np.broadcast_to(each[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate((scores, sink), -1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = (weights / weights.sum(-1, keepdims=True))[..., :-1]
        out[lo:hi] = np.einsum("hij,jhd->ihd", weights, spread(values))
    return out


@pytest.mark.parametrize("scale", [0.1, 1e4])
def test_attention_equals_a_dense_softmax(scale: float) -> None:
    for case in small_cases("attention"):
        given = arrays_of(case)
        case = replace(case, op=replace(case.op, scale=scale))  # type: ignore[type-var]
        got, want = case.op.reference(*given.values()), dense_attention(case, given)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=case.id)


def test_attention_reads_no_hidden_key() -> None:
    """NaN in every pool row that no query may see changes nothing."""
    for case in small_cases("attention"):
        given, op = arrays_of(case), case.op
        want = op.reference(*given.values())
        seen = np.zeros(len(given["k"]), bool)
        offsets = given["seq_offsets"]
        for b in range(len(offsets) - 1):
            at = given["positions"][offsets[b] : offsets[b + 1]]
            for p in at:
                last = at[-1] if op.mask == "full" else p  # type: ignore[attr-defined]
                first = max(0, p - op.window + 1) if op.window else 0  # type: ignore[attr-defined]
                for j in range(first, last + 1):
                    page = op.page  # type: ignore[attr-defined]
                    seen[given["block_table"][b, j // page] * page + j % page] = True
        given["k"], given["v"] = given["k"].copy(), given["v"].copy()
        given["k"][~seen] = given["v"][~seen] = np.nan
        assert np.array_equal(op.reference(*given.values()), want), case.id


def test_write_rows_rounds_to_the_dtype_of_the_state() -> None:
    rows = np.array([[1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, 3e38, 70000.0]], np.float32)
    idx = i32(1)
    for of, want in (
        ("f32", rows[0]),
        ("f16", [1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, np.inf]),
        ("bf16", [1.0, 1.0, 1 + 2**-6, 3.0039e38, 70144.0]),
    ):
        before = host_tensor(np.linspace(-2, 2, 15).reshape(3, 5), of)
        op = make_op("write_rows", {})
        spec = op.infer(before.spec, TensorSpec((1, 5)), TensorSpec((1,), dtype("i32")))
        assert spec == before.spec
        out = op.reference(before.decoded(), rows, idx)
        stored: HostTensor = host_tensor(out, spec.dtype)
        np.testing.assert_allclose(stored.decoded()[1].astype(np.float32), want, rtol=1e-4)
        for row in (0, 2):
            assert np.array_equal(stored.decoded()[row], before.decoded()[row])


def test_write_rows_skips_negatives_and_lets_the_last_win() -> None:
    state, rows = np.zeros((4, 1), np.float32), np.arange(1, 6, dtype=np.float32)[:, None]
    out = run("write_rows", dict(state=state, rows=rows, idx=i32(2, -1, 0, 2, -7)))
    assert out[:, 0].tolist() == [3, 0, 4, 0]


CONV = "ssm_conv[c=64,w=4,t=3+0+5+1,k=4,pad=2,r=6]"
DELTA = "gated_delta_net[hk=2,hv=2,s=32,t=3+0+5+1,k=4,tiled,r=7,pad=2]"
ATTENTION = "attention[d=64,hkv=2,h=4,f32,grouped,causal,t=7@0+4@598,window=300]"
FULL = "attention[d=64,hkv=2,h=4,f32,grouped,full,t=9@0+9@250+1@3]"
ROWS = "write_rows[f16,r=9,inner=2x64,n=5,some negative]"
BAD_DATA = [
    (ROWS, "idx", 3, 9, "below 9, got 9 at [3]"),
    *((c, "seq_offsets", 0, 1, "0 at [0], got 1") for c in (CONV, DELTA, ATTENTION)),
    *((c, "seq_offsets", 1, 9, "ascending and at most 11") for c in (CONV, DELTA)),
    *(
        (c, "seq_offsets", 4, 12, "at most 11, the number of rows, got 8, 12")
        for c in (CONV, DELTA)
    ),
    (CONV, "state_rows", 2, 6, "in [0, 6), got 6 at [2]"),
    (DELTA, "state_rows", 0, -1, "in [0, 7), got -1 at [0]"),
    (CONV, "state_rows", 0, 3, "a row of its own for each sequence, got 3 for sequences 0 and 2"),
    (DELTA, "state_rows", 3, 6, "a row of its own for each sequence, got 6 for sequences 0 and 3"),
    *((c, p, 3, 4, "in [0, 4), got 4 at [3]") for c in (CONV, DELTA) for p in ("start", "head")),
    (DELTA, "start", 1, -1, "in [0, 4), got -1 at [1]"),
    (ATTENTION, "positions", 8, -1, "in [0, 1024), the block table, got -1 at [8]"),
    (ATTENTION, "positions", 10, 1024, "in [0, 1024), the block table, got 1024 at [10]"),
    (FULL, "positions", 8, 768, "in [0, 768), the block table, got 768 at [8]"),
    (ATTENTION, "block_table", (1, 2), 6, "in [0, 6), pages of the pool, got 6 at [1, 2]"),
    (ATTENTION, "block_table", (0, 0), -1, "in [0, 6), pages of the pool, got -1 at [0, 0]"),
]


@pytest.mark.parametrize(("case_id", "arg", "place", "value", "message"), BAD_DATA)
def test_bad_data_is_an_error_of_the_run(
    case_id: str, arg: str, place: Any, value: int, message: str
) -> None:
    name = case_id.partition("[")[0]
    case = next(c for c in small_cases(name) if c.id == case_id)
    given = arrays_of(case)
    case.op.reference(*given.values())
    given[arg] = given[arg].copy()
    given[arg][place] = value
    with pytest.raises(BackendError) as error:
        case.op.reference(*given.values())
    assert str(error.value).startswith(f"{name}: '{arg}' should be ")
    assert message in str(error.value)


def test_a_sequence_without_tokens_may_name_a_row_in_use() -> None:
    case = next(c for c in small_cases("gated_delta_net") if c.id == DELTA)
    given = arrays_of(case)
    want = case.op.reference(*given.values())
    given["state_rows"] = given["state_rows"].copy()
    given["state_rows"][1] = given["state_rows"][2]
    got = case.op.reference(*given.values())
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
