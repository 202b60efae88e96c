"""ggml's packed form of the gated delta rule: its layout, and that its expansion is the same."""

from __future__ import annotations

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from riverrun.backends import open_backend
from riverrun.backends.harness import Built, build, execute
from riverrun.backends.reference import ReferenceBackend
from riverrun.graph import OPS, Graph, make_op, verify
from riverrun.graph.case import BoundCase, op_cases
from riverrun.graph.errors import ShapeError
from riverrun.graph.passes.expand import expand, expansion

NAME = "ggml_gated_delta_net"
CASES = [case for case in op_cases(OPS[NAME]) if "perf" not in case.tags]
OP = make_op(NAME, {})


def expanded(built: Built) -> Built:
    graph = expand(built.graph, lambda node: False)
    return Built(graph, graph.nodes[-1], built.inputs, built.states)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_the_expansion_gives_the_same_bits(case: BoundCase) -> None:
    fused = build(case)
    parts = expanded(fused)
    assert NAME not in {n.op.name for n in parts.graph.nodes}
    one, two = (execute(ReferenceBackend(), b)["packed"] for b in (fused, parts))
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize("tokens, keep", [(4, 1), (4, 4), (5, 3), (2, 4)])
def test_results_come_first_then_the_planes_newest_first(tokens: int, keep: int, kda: bool) -> None:
    """Against the recurrence of one sequence and one head, written as matrix products."""
    batch, hk, hv, s = 2, 2, 4, 8
    rng = np.random.default_rng(tokens)

    def draw(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    q, k, v = (draw(batch, tokens, h, s) for h in (hk, hk, hv))
    g = -2 * np.abs(draw(batch, tokens, hv, *((s,) if kda else ())))
    beta, state = np.abs(draw(batch, tokens, hv)), draw(batch, keep, hv * s * s)
    packed = OP.reference(q, k, v, g, beta, state)
    size = batch * tokens * hv * s
    out = packed[:size].reshape(batch, tokens, hv, s)
    planes = packed[size:].reshape(keep, batch, hv, s, s)
    for b, h in np.ndindex(batch, hv):
        m = state[b, 0].reshape(hv, s, s)[h].astype(np.float64)
        history = []
        for t in range(tokens):
            key, query = (x[b, t, h % hk].astype(np.float64) for x in (k, q))
            m = m @ np.diag(np.exp(np.broadcast_to(g[b, t, h], s).astype(np.float64)))
            m = m + np.outer(float(beta[b, t, h]) * (v[b, t, h] - m @ key), key)
            history.append(m)
            np.testing.assert_allclose(out[b, t, h], m @ query / np.sqrt(s), 1e-4, 1e-5)
        for age in range(keep):
            want = history[-1 - age] if age < tokens else np.zeros((s, s))
            np.testing.assert_allclose(planes[age, b, h], want, 1e-4, 1e-5)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("case", [c for c in CASES if "rank=" in c.id], ids=lambda c: c.id)
def test_states_of_earlier_signatures_keep_the_final_one(case: BoundCase, device: str) -> None:
    """The bits are those of one kept plane, whatever the state's rank."""
    backend = open_backend(device, 1)
    arrays = dict(zip(case.names, (t.decoded() for t in case.draw() if t is not None), strict=True))
    arrays["state"] = arrays["state"].reshape(len(arrays["state"]), 1, -1)
    plane = Graph()
    values = [plane.input(name, array.shape) for name, array in arrays.items()]
    plane.output("packed", plane.ggml_gated_delta_net(*values))
    same = execute(backend, Built(plane, plane.nodes[-1], arrays, {}))["packed"]
    assert execute(backend, build(case))["packed"].tobytes() == same.tobytes()


@pytest.mark.parametrize(
    "shape", [(2, 0, 192), (2, 191), (3, 192), (2, 3, 8, 4), (2, 8, 3, 8), (2, 1, 3, 64), (384,)]
)
def test_other_states_are_refused(shape: tuple[int, ...]) -> None:
    g = Graph()
    q, k, v = (g.input(n, (2, 5, 3, 8)) for n in "qkv")
    g_, beta = (g.input(n, (2, 5, 3)) for n in ("g", "beta"))
    want = r"should be \(2, K, 192\), or \(2, 192\) or \(2, 3, 8, 8\) for K = 1, got"
    with pytest.raises(ShapeError, match=want):
        g.ggml_gated_delta_net(q, k, v, g_, beta, g.input("state", shape))


def test_only_plane_0_of_the_state_is_read() -> None:
    case = next(c for c in CASES if "t=3,b=2,k=4" in c.id)
    arrays = [t.decoded() for t in case.draw() if t is not None]
    spoilt = arrays[5].copy()
    spoilt[:, 1:] = np.nan
    one, two = OP.reference(*arrays), OP.reference(*arrays[:5], spoilt)
    assert one.tobytes() == two.tobytes() and np.isfinite(two).all()


@pytest.mark.parametrize("keep", [1, 3])
def test_operands_may_come_head_first(keep: int) -> None:
    """q, k and v as [B, H, T, S] under swapped axes, as ggml permutes them."""
    batch, t, h, s = 2, 4, 3, 16
    shapes = dict(q=(batch, h, t, s), k=(batch, h, t, s), v=(batch, h, t, s))
    shapes |= dict(g=(batch, t, h), beta=(batch, t, h), state=(batch, keep, h * s * s))
    rng = np.random.default_rng(0)
    arrays = {n: rng.uniform(-1, 0, x).astype(np.float32) for n, x in shapes.items()}
    g = Graph()
    values = [g.input(n, x) for n, x in shapes.items()]
    turned = [g.transpose(x, a=1, b=2) if i < 3 else x for i, x in enumerate(values)]
    g.output("packed", g.ggml_gated_delta_net(*turned))
    fused = Built(g, g.nodes[-1], arrays, {})
    parts = expanded(fused)
    assert [n.op.name for n in parts.graph.nodes].count("cont") >= 3
    one, two = (execute(ReferenceBackend(), b)["packed"] for b in (fused, parts))
    assert one.tobytes() == two.tobytes()
    dense = [a.swapaxes(1, 2) if i < 3 else a for i, a in enumerate(arrays.values())]
    assert one.tobytes() == OP.reference(*dense).tobytes()


def test_the_state_given_stays_as_it_is() -> None:
    case = next(c for c in CASES if "t=3,b=2,k=4" in c.id)
    parts = expansion(build(case).node)
    assert parts is not None
    verify(parts)
    written = [v for n in parts.nodes for v in n.written().values()]
    assert [v.node.op.name for v in written] == ["pad"]
    single = expansion(build(CASES[0]).node)
    assert single is not None
    written = [v for n in single.nodes for v in n.written().values()]
    assert [v.node.op.name for v in written] == ["cont"]


@pytest.mark.usefixtures("all_processors")
def test_a_plan_of_one_plane_runs_on_the_processor() -> None:
    """The parts have kernels, whether or not the whole has."""
    for case in CASES:
        if ",k=1" not in case.id or "t=4," not in case.id:
            continue
        built = expanded(build(case))
        got = execute(open_backend("cpu", 2), built)["packed"]
        want = execute(ReferenceBackend(), built)["packed"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
