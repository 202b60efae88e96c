"""Plans that are recorded once and replayed: same bits ever after, no memory taken, nothing more
recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import riverrun as rr
from cuda_rig import EMULATED, Calls, Counted, backend, needs_cuda, slow, thinned
from paths import DEMO
from riverrun.backends import cuda
from riverrun.backends.native import PLAIN
from riverrun.graph import Graph
from rollback_rig import STRATEGIES, stream, tiny

pytestmark = needs_cuda
# Emulated kernels take fewer steps: those around 128 keys, where attention begins another split.
PROMPT, STEPS = thinned((0, 1000), (116, 24))


def tokens(n: int) -> list[int]:
    """Any tokens."""
    return stream(7, n)


def decode(model: rr.Model, given: Sequence[int], prompt: int = 0) -> list[bytes]:
    """The logits after each token beyond a prompt of the first ones."""
    session = model.session(n_ctx=len(given))
    if prompt:
        session.prefill(given[:prompt])
    return [session.decode(token).tobytes() for token in given[prompt:]]


def decode_many(model: rr.Model) -> list[bytes]:
    return decode(model, tokens(PROMPT + STEPS), PROMPT)


@cache
def decoded(variant: str) -> list[bytes]:
    return decode_many(tiny(variant, "cuda"))


def launched(model: rr.Model, monkeypatch: pytest.MonkeyPatch) -> rr.Model:
    """The same file, its kernels launched anew in every run."""
    monkeypatch.setenv(cuda.GRAPHS, "0")
    return rr.load(model.source.path, device="cuda")


VARIANTS = [
    "qwen35",
    *(pytest.param(v, marks=slow) for v in ("llama", "qwen3", "gemma3", "qwen35moe")),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_steps_have_the_same_bits_again(variant: str) -> None:
    first = decoded(variant)
    assert len(set(first)) > STEPS // 2
    assert decode_many(tiny(variant, "cuda")) == first


@pytest.mark.parametrize("variant", VARIANTS)
def test_graphs_change_no_bits(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = launched(tiny(variant, "cuda"), monkeypatch)
    assert not model.backend.graphs  # type: ignore[attr-defined]
    assert decode_many(model) == decoded(variant)


def rounds(model: rr.Model, n: int) -> Iterator[bytes]:
    """Logits and states along prompts, passes over two sequences and rejections."""
    session, rng, given = model.session(256, 2, n_rs_seq=4), random.Random(3), tokens(300)
    for seq in range(2):
        yield session.prefill(given[: 20 + seq], seq).tobytes()
    for _ in range(n):
        items = [(seq, given[: rng.randint(1, 5)]) for seq in range(2)]
        yield session.verify(items).logits.tobytes()
        for seq, drafted in items:
            session.commit(seq, rng.randint(0, len(drafted)))
    for name in sorted(session.pools.specs):
        yield session.pools.raw(name).tobytes()


@pytest.mark.parametrize(
    "variant",
    ["qwen35", *(pytest.param(v, marks=slow) for v in ("llama", "gemma3", "qwen35moe"))],
)
def test_graphs_change_no_bits_of_rounds(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, n = tiny(variant, "cuda"), thinned(60, 10)
    want = list(rounds(model, n))
    assert list(rounds(launched(model, monkeypatch), n)) == want
    assert list(rounds(model, n)) == want


@pytest.mark.parametrize("variant", ["qwen35", "llama"])
def test_steps_take_no_memory(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(variant, "cuda")
    session = model.session(256, n_rs_seq=2)
    session.decode(1)
    card = cuda._cuda.Card(0)
    free = card.free_bytes
    made = [Counted(monkeypatch, name) for name in ("CardMemory", "PinnedMemory")]
    for token in tokens(50):
        session.decode(token)
    assert [c.n for c in made] == [0, 0]
    if EMULATED:  # others may use a real card
        assert card.free_bytes == free


@pytest.mark.parametrize("variant", ["qwen35", "llama"])
def test_longer_texts_take_no_more_memory(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy generation, which runs ahead of the host."""
    model, used = tiny(variant, "cuda"), []
    made = [Counted(monkeypatch, name) for name in ("CardMemory", "PinnedMemory")]
    for n in (5, 40):
        before = [c.n for c in made]
        got = model.generate(tokens(6), n, n_ctx=64, temperature=0, ignore_eos=True).result
        assert len(got.tokens) == n
        used.append([c.n - was for c, was in zip(made, before, strict=True)])
    assert used[0] == used[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rounds_record_nothing(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts, rng, given = 4, random.Random(1), tokens(300)
    session = tiny("qwen35", "cuda").session(512, 2, rollback=strategy, n_rs_seq=drafts)
    for seq in range(2):
        session.evaluate([(seq, given[:5])], want="none")
    session.sequences.prepare_drafts(drafts)
    calls = [
        Calls(monkeypatch, cuda._cuda.Plan, "bind"),
        Counted(monkeypatch, "CardMemory"),
        Counted(monkeypatch, "PinnedMemory"),
        Counted(monkeypatch, "Plan"),
    ]
    seen = set()
    for _ in range(thinned(500, 20)):
        seqs = rng.sample(range(2), rng.randint(1, 2))
        items = [(seq, given[: rng.randint(1, drafts + 1)]) for seq in seqs]
        session.verify(items)
        for seq, drafted in items:
            keep = rng.randint(1, len(drafted))
            seen.add((len(drafted), keep))
            session.commit(seq, keep)
            if session.length(seq) > 400:
                session.clear(seq)
    assert len(seen) > 8 and [c.n for c in calls] == [0, 0, 0, 0]
    tiny("qwen35", "cuda").session(64, rollback=strategy, n_rs_seq=drafts)
    assert all(c.n > 0 for c in calls[:3])


def test_weights_go_to_the_card_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = rr.load(DEMO, device="cuda")
    there = dict(model.weights._made)
    assert len({name for name, _ in there}) == len(there)
    for (name, layout), memory in there.items():
        spec = model.source.weights[name].spec
        rows = math.prod(spec.shape[:-1])
        filled_up = rows if layout == PLAIN else -(-rows // 8) * 8
        assert memory.size == spec.nbytes // rows * filled_up
    list(model.generate("import os\n" * 40, max_tokens=3, temperature=0))
    made = Counted(monkeypatch, "CardMemory")
    sessions = [model.session(256, n) for n in (1, 2)]
    sessions[1].sequences.prepare(40)
    assert model.weights._made == there and all(
        model.weights._made[key] is memory for key, memory in there.items()
    )
    # The states of both, and small change: inputs and scratch.
    plans = [len(s.sequences.runner.bound_plans) for s in sessions]
    states = sum(len(s.pools.specs) for s in sessions)
    assert made.n <= states + 3 * sum(plans)


def test_two_sessions_do_not_disturb_each_other() -> None:
    model, given = tiny("qwen35", "cuda"), tokens(24)
    want = decode(model, given)
    one, two = (model.session(64) for _ in range(2))
    other = tokens(60)[30:54]
    got = []
    for a, b in zip(given, other, strict=True):
        got.append(one.decode(a).tobytes())
        two.decode(b)
    assert got == want


def test_runs_that_are_started_in_a_row_end_in_order() -> None:
    """Two bound plans of one state: each run sees what the one before it wrote."""
    g = Graph("sum")
    state = g.state("s", (1, 4), "f32")
    idx = g.constant(np.zeros(1, np.int32), "idx")
    total = g.add(g.cont(state), g.input("x", (1, 4), "f32"))
    g.output("t", total)
    g.output("s1", g.write_rows(state, total, idx))
    plan = backend().compile(g)
    pools = plan.pools()
    bound = [plan.bind(plan.own_weights(), pools) for _ in range(2)]
    want = np.zeros((1, 4), np.float32)
    for i in range(10):
        for n, b in enumerate(bound):
            b.inputs["x"][...] = np.arange(4) + n + i
            b.start()
        for n, b in enumerate(bound):
            b.finish()
            want += np.arange(4, dtype=np.float32) + n + i
            np.testing.assert_array_equal(b.outputs["t"], want)
    assert pools.raw("s").tobytes() == want.tobytes()
