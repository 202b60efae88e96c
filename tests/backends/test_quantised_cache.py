"""Pools of q8_0 and q4_0: bytes as the codec's, rows left alone, attention on the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from golden_rig import MARGINS
from one_op import bits, cpu
from riverrun.backends import Backend, Pools, open_backend
from riverrun.graph import Graph
from riverrun.graph.codec import decode, encode
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import BackendError, DTypeError
from tiny_models import llama

TYPES = ["q8_0", "q4_0"]
Arrays = dict[str, np.ndarray]
of_type = pytest.mark.parametrize("of", TYPES)
on_device = pytest.mark.parametrize("device", ["reference", "cpu", "cpu, 3 threads"])


def backend(device: str) -> Backend:
    if device == "reference":
        return open_backend(device)
    return cpu(3 if "threads" in device else 1)


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(bits(a), bits(b))


def uniform(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def garbage(of: str, *shape: int) -> np.ndarray:
    """Bytes as they may lie in memory that nothing wrote: NaN among the scales."""
    d = dtype(of)
    raw = np.random.default_rng(7).integers(0, 256, (*shape[:-1], d.row_bytes(shape[-1])))
    raw = raw.astype(np.uint8)
    raw[::3, ..., :2] = 0xFF
    raw[1] = 0
    return raw


class Held:
    """A graph bound to states that start from given bytes."""

    def __init__(self, device: str, g: Graph, states: Arrays, inputs: Arrays) -> None:
        plan = backend(device).compile(g)
        self.pools = Pools(plan.states)
        for name, raw in states.items():
            self.pools.array(name)[...] = raw
        self.bound = plan.bind(plan.own_weights(), self.pools)
        for name, array in inputs.items():
            self.bound.inputs[name][...] = array

    def run(self) -> Arrays:
        self.bound.run()
        return {name: np.array(a) for name, a in self.bound.outputs.items()}


def writing(device: str, of: str, raw: np.ndarray, rows: np.ndarray, idx: Any) -> Held:
    """write_rows into a state of these bytes."""
    g = Graph("write")
    state = g.state("state", (*raw.shape[:-1], rows.shape[-1]), of)
    given = g.input("rows", rows.shape), g.input("idx", (len(rows),), "i32")
    g.output("state_out", g.write_rows(state, *given))
    return Held(device, g, {"state": raw}, {"rows": rows, "idx": i32(idx)})


def rows_of_all_sorts() -> np.ndarray:
    """[40, 2, 64]: of many sizes, ties, extremes that come twice, zeros, tiny values."""
    x = uniform(1, 40, 2, 64) * np.float32(10) ** np.arange(-20, 20)[:, None, None].clip(-12, 5)
    x[3] = np.linspace(-16, 16, 64)
    x[4] = np.arange(-127, 128, 0.5)[:64]
    x[5] = np.arange(-127, 128, 0.5)[-64:]
    x[6, :, ::2], x[6, :, 1::2] = 2.5, -2.5
    x[7, :, ::2], x[7, :, 1::2] = -2.5, 2.5
    x[8], x[9], x[10] = 0.0, -0.0, 1e-42
    x[11, 0, :], x[11, 0, 17] = 0.0, 3e5
    return x.astype(np.float32)


@of_type
@on_device
def test_bytes_are_those_of_the_codec_and_others_stay(device: str, of: str) -> None:
    x = rows_of_all_sorts()
    raw = garbage(of, 100, 2, 64)
    idx = np.random.default_rng(2).permutation(100)[: len(x)]
    idx[5::7] = -1
    held = writing(device, of, raw, x, idx)
    out = held.run()["state_out"]
    want = raw.copy()
    want[idx[idx >= 0]] = encode(dtype(of), x[idx >= 0])
    np.testing.assert_array_equal(held.pools.array("state"), want)
    np.testing.assert_array_equal(out, want)


@of_type
@on_device
def test_a_long_pass_writes_what_short_ones_do(device: str, of: str) -> None:
    """Many rows are shared out among threads; the last of equal indices wins."""
    x = uniform(3, 300, 2, 128)
    idx = np.r_[np.arange(298) + 40, 7, 7]
    held = writing(device, of, garbage(of, 400, 2, 128), x, idx)
    held.run()
    want = garbage(of, 400, 2, 128)
    want[idx] = encode(dtype(of), x)
    np.testing.assert_array_equal(held.pools.array("state"), want)


@of_type
@on_device
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2e9, -2e7])
def test_what_blocks_cannot_hold_is_told(device: str, of: str, value: float) -> None:
    x = uniform(4, 300, 2, 128)
    raw = garbage(of, 400, 2, 128)
    x[3] = np.nan  # not written
    idx = np.arange(300)
    idx[3] = -1
    held = writing(device, of, raw, x, idx)
    held.run()
    before = held.pools.array("state").copy()
    held.bound.inputs["rows"][250, 1, 77] = value
    held.bound.inputs["rows"][:3] = 5.0
    with pytest.raises(BackendError, match=r"write_rows.*(finite|f16)"):
        held.run()
    np.testing.assert_array_equal(held.pools.array("state"), before)


@of_type
@on_device
def test_a_state_seen_under_other_shapes(device: str, of: str) -> None:
    """Written as [R, Hkv * D], read as [R, Hkv, D] and as some of its pages."""
    g = Graph("views")
    state = g.state("state", (48, 128), of)
    k = g.write_rows(state, g.input("rows", (5, 128)), g.input("idx", (5,), "i32"))
    pools = g.reshape(k, shape=(48, 2, 64))
    q, positions = g.input("q", (1, 4, 64)), g.input("positions", (1,), "i32")
    table, offsets = g.input("table", (1, 2), "i32"), g.input("offsets", (2,), "i32")
    kept = {"scale": 0.125, "heads": "grouped", "mask": "causal", "page": 16}
    later = g.view(pools, axis=0, start=16, stop=48)
    g.output("whole", g.attention(q, pools, pools, offsets, positions, table, **kept))
    g.output("part", g.attention(q, later, later, offsets, positions, table, **kept))
    x, before = uniform(5, 5, 128), encode(dtype(of), uniform(6, 48, 128))
    inputs = {"rows": x, "idx": i32([20, 21, -1, 40, 3]), "q": uniform(7, 1, 4, 64)}
    inputs |= {"positions": i32([29]), "table": i32([[1, 0]]), "offsets": i32([0, 1])}
    held = Held(device, g, {"state": before}, inputs)
    out = held.run()
    want = before.copy()
    want[[20, 21, 40, 3]] = encode(dtype(of), x[[0, 1, 3, 4]])
    np.testing.assert_array_equal(held.pools.array("state"), want)
    keys = decode(dtype(of), want, (48, 2, 64))
    at = {"whole": np.r_[16:32, 0:14], "part": np.r_[32:48, 16:30]}
    for name, rows in at.items():
        want_o = softmax_of(inputs["q"][0], keys[rows], keys[rows])
        np.testing.assert_allclose(out[name][0], want_o, rtol=1e-4, atol=1e-5)


def softmax_of(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One query, [H, D], over all of these keys in f64."""
    out = []
    for h, x in enumerate(q.astype(np.float64)):
        m = h // (len(q) // keys.shape[1])
        weight = np.exp(keys[:, m].astype(np.float64) @ x / np.sqrt(len(x)))
        out.append(weight @ values[:, m] / weight.sum())
    return np.array(out)


class Context:
    """A sequence's keys and values of two types, in scattered pages, and as the floats they are."""

    def __init__(self, of_k: str, of_v: str, length: int, d: int, kv_heads: int = 2) -> None:
        self.kinds = {"k": of_k, "v": of_v}
        self.pages = -(-length // 256)
        self.table = i32([np.random.default_rng(length).permutation(self.pages + 2)[: self.pages]])
        self.shape = ((self.pages + 2) * 256, kv_heads, d)
        kinds = self.kinds.items()
        self.raw = {n: self.encoded(kind, seed) for seed, (n, kind) in enumerate(kinds)}
        self.floats = {n: decode(dtype(kind), self.raw[n], self.shape) for n, kind in kinds}

    def encoded(self, kind: str, seed: int) -> np.ndarray:
        made = encode(dtype(kind), uniform(seed, *self.shape))
        return made.view(dtype(kind).storage)

    def run(
        self, q: np.ndarray, positions: Any, device: str = "cpu", plain: bool = False, **form: Any
    ) -> np.ndarray:
        """Attention of these queries; plain: over the floats that the blocks stand for."""
        g = Graph("attention")
        kinds = dict.fromkeys(self.kinds, "f32") if plain else self.kinds
        k, v = (g.state(name, self.shape, kind) for name, kind in kinds.items())
        rest = {
            "seq_offsets": i32([0, len(q)]),
            "positions": i32(positions),
            "block_table": self.table,
        }
        values = [g.input(name, a.shape, "i32") for name, a in rest.items()]
        chosen = {"mask": "causal", "heads": "grouped", "scale": q.shape[2] ** -0.5, **form}
        g.output("o", g.attention(g.input("q", q.shape), k, v, *values, **chosen))
        states = self.floats if plain else self.raw
        return Held(device, g, states, {"q": q, **rest}).run()["o"]


PAIRS = [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"), ("q4_0", "f16"), ("bf16", "q8_0")]
FORMS = {
    "causal": {},
    "tiled": {"heads": "tiled"},
    "window": {"window": 37},
    "full": {"mask": "full"},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("device", ["cpu", "cpu, 3 threads"])
@pytest.mark.parametrize("of_k, of_v", PAIRS)
def test_blocks_are_the_floats_they_stand_for(
    of_k: str, of_v: str, device: str, form: dict[str, Any]
) -> None:
    """Bit for bit, for a prompt and for a step."""
    context = Context(of_k, of_v, 300, 96)
    for n in (1, 45):
        q, positions = uniform(n, n, 6, 96), np.arange(300 - n, 300)
        got = context.run(q, positions, device, **form)
        assert same(got, context.run(q, positions, "cpu", plain=True, **form))


@pytest.mark.parametrize("device", ["cpu", "cpu, 3 threads"])
@pytest.mark.parametrize("of_k, of_v", PAIRS[:3])
def test_a_row_of_a_prompt_is_the_row_of_a_step(of_k: str, of_v: str, device: str) -> None:
    context = Context(of_k, of_v, 600, 64)
    q = uniform(9, 600, 8, 64)
    whole = context.run(q, np.arange(600), device)
    for i in (0, 1, 15, 16, 31, 200, 255, 256, 257, 511, 512, 599):
        assert same(whole[i], context.run(q[i : i + 1], [i])[0])
    for n in (*range(1, 18), 33, 65, 260):
        part = context.run(q[600 - n :], np.arange(600 - n, 600), device)
        assert same(part, whole[600 - n :])


@of_type
@pytest.mark.parametrize("device", ["cpu", "cpu, 3 threads"])
def test_blocks_that_are_not_visible_are_not_read(device: str, of: str) -> None:
    context = Context(of, of, 700, 64)
    q = uniform(11, 2, 4, 64)
    want = context.run(q, [600, 601], window=50)
    j = np.arange(551, 602)
    seen = context.table[0, j // 256] * 256 + j % 256
    for raw in context.raw.values():
        kept = raw[seen]
        raw[...] = 0xFF
        raw[seen] = kept
    context.table[0, [0, 1]] = -1
    assert not np.isnan(want).any()
    assert same(context.run(q, [600, 601], device, window=50), want)


def hidden_rows(model: rr.Model, of: str, ids: list[int], cuts: tuple[int, ...] = ()) -> Any:
    """Logits and hidden rows of every position."""
    session = model.session(n_ctx=512, cache_type_k=of, cache_type_v=of)
    logits, hidden, at = [], [], 0
    for end in (*cuts, len(ids)):
        part = session.evaluate([(0, ids[at:end])], want="all", hidden=True)
        logits.append(part.logits.copy())
        hidden.append(np.array(part.hidden))
        at = end
    return np.concatenate(logits), np.concatenate(hidden)


# How far hidden rows may move, as a part of their length. Products of quantised weights round
# activations to 8 bits, which any other cache pushes over a step here and there.
MOVED = {"bf16": {"q8_0": 0.004, "q4_0": 0.06}, "q8_0": {"q8_0": 0.03, "q4_0": 0.08}}


@of_type
@pytest.mark.parametrize("kind", MOVED)
@pytest.mark.parametrize("name", ["p3", "p65", "p200"])
def test_the_demo_model_goes_on_as_with_floats(name: str, kind: str, of: str) -> None:
    """Wherever the next token is ahead of the second by more than what moves."""
    p, model = PROMPTS[name], demo(kind=kind)
    ids, first = p["ids"] + p["greedy"][:-1], len(p["ids"]) - 1
    exact, rows = hidden_rows(model, "f32", ids)
    got, moved = hidden_rows(model, of, ids)
    sure = np.array(p["greedy_margin"]) >= max(MARGINS[kind], {"q8_0": 0.2, "q4_0": 0.5}[of])
    assert sure.sum() > 30
    np.testing.assert_array_equal(got[first:].argmax(-1)[sure], exact[first:].argmax(-1)[sure])
    assert 0 < np.linalg.norm(moved - rows) / np.linalg.norm(rows) < MOVED[kind][of]


@of_type
@pytest.mark.parametrize("cuts", [(1,), (63, 64, 130)], ids=str)
def test_a_prompt_may_be_cut_anywhere(of: str, cuts: tuple[int, ...]) -> None:
    ids = PROMPTS["p200"]["ids"]
    whole, parts = (hidden_rows(demo(), of, ids, c)[0] for c in ((), cuts))
    assert same(whole, parts)


def test_bytes_of_a_position() -> None:
    sizes = {}
    for of in ("f32", "f16", *TYPES):
        session = demo().session(n_ctx=256, cache_type_k=of, cache_type_v=of)
        pools = [s for n, s in session.pools.specs.items() if n.startswith("cache_")]
        sizes[of] = sum(s.nbytes // s.shape[0] for s in pools)
    assert sizes["f32"] == 2 * sizes["f16"]
    assert sizes["q8_0"] * 64 == sizes["f16"] * 34
    assert sizes["q4_0"] * 64 == sizes["f16"] * 18


@of_type
def test_head_sizes_that_are_no_whole_blocks_are_told(of: str, tmp_path: Any) -> None:
    model = rr.load(llama().write(tmp_path / "llama.gguf"))
    size = model.source.arch.hp.head_dim_k
    assert size % 32
    message = rf"cache_type_v: {of} .* multiples of 32, .* {size}.*use f16"
    with pytest.raises(DTypeError, match=message):
        model.session(cache_type_v=of)
