"""State memory on a card against the same on the host; what is said before it would not fit."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from cuda_rig import EMULATED, MIB, Counted, backend, needs_cuda, scarce
from paths import DEMO
from riverrun.backends import cuda
from riverrun.backends.base import SPARE, Index, Pools
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.scheduler import SplitPools
from riverrun.graph import Graph, HostTensor, TensorSpec, dtype
from riverrun.graph.errors import BackendError, GraphError

pytestmark = needs_cuda
SPECS = {
    "f32": TensorSpec((6, 5, 7)),
    "bf16": TensorSpec((9, 4, 10), dtype("bf16")),
    "f16": TensorSpec((5, 24), dtype("f16")),
    "q8_0": TensorSpec((8, 3, 64), dtype("q8_0")),
    "i32": TensorSpec((12,), dtype("i32")),
    "one": TensorSpec((1, 1, 1)),
}


def filled(seed: int) -> tuple[Pools, cuda.CudaPools]:
    """The same bytes in both kinds of pools."""
    host, card = Pools(SPECS), backend().pools(SPECS)
    rng = np.random.default_rng(seed)
    for name, spec in SPECS.items():
        raw = rng.integers(0, 256, spec.nbytes, dtype=np.uint8)
        host.load(name, raw)
        card.load(name, raw)
    return host, card


def require_same(host: Pools, card: Pools) -> None:
    for name in SPECS:
        assert np.array_equal(host.raw(name), card.raw(name)), name


def draw_slice(rng: random.Random, n: int) -> slice:
    """Any slice of n places, empty and backward ones among them."""
    start, stop = rng.randint(-n, n), rng.randint(-n, n + 1)
    step = rng.choice((None, 1, 1, 2, 3, -1, -2))
    return slice(rng.choice((None, start)), rng.choice((None, stop)), step)


def draw_index(rng: random.Random, shape: tuple[int, ...]) -> Index:
    """An int, a slice, or a tuple of them."""

    def part(n: int) -> int | slice:
        return rng.randrange(-n, n) if rng.random() < 0.5 else draw_slice(rng, n)

    axes = rng.randint(0, len(shape) - (len(shape) > 1))
    return part(shape[0]) if axes == 0 else tuple(part(n) for n in shape[:axes])


@pytest.mark.parametrize("name", SPECS)
def test_any_part_is_read_and_written(name: str) -> None:
    rng, (host, card) = random.Random(name), filled(1)
    shape = SPECS[name].storage_shape
    for i in range(60):
        at = draw_index(rng, shape)
        want, got = host.read(name, at), card.read(name, at)
        assert (want.dtype, want.shape) == (got.dtype, got.shape), at
        assert want.tobytes() == got.tobytes(), at
        values: Any = 0 if i % 4 == 0 else np.flip(want).copy() if want.ndim else want
        host.write(name, at, values)
        card.write(name, at, values)
        require_same(host, card)


@pytest.mark.parametrize("name", SPECS)
def test_values_are_broadcast(name: str) -> None:
    host, card = filled(2)
    row = host.read(name, 0)
    for pools in (host, card):
        pools.write(name, slice(None), row)
    require_same(host, card)
    for pools in (host, card):
        pools.write(name, (slice(None),), 1)
    require_same(host, card)


@pytest.mark.parametrize("name", [n for n in SPECS if n != "one"])
def test_parts_are_copied_on_the_card(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, card = filled(3)
    rng, n = random.Random(name), SPECS[name].storage_shape[0]
    for _ in range(20):
        size = rng.randint(1, n // 2)
        src = rng.randint(0, n // 2 - size)
        dst = rng.randint(n // 2, n - size)
        host.copy(name, slice(src, src + size), slice(dst, dst + size))
        with monkeypatch.context() as within:
            # Nothing may pass through the host.
            within.setattr(cuda._cuda.CardMemory, "read", None)
            within.setattr(cuda._cuda.CardMemory, "write", None)
            card.copy(name, slice(src, src + size), slice(dst, dst + size))
        require_same(host, card)
    host.copy(name, (0,), (n - 1,))
    card.copy(name, (0,), (n - 1,))
    require_same(host, card)


@pytest.mark.parametrize("room", [True, False], ids=["on the card", "on the host"])
def test_parts_are_kept_and_put_back(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any places of all states at once: within the card while it has room to spare."""
    (host, card), rng = filled(5), random.Random(5)
    for _ in range(8):
        parts = {n: [draw_index(rng, s.storage_shape) for _ in range(3)] for n, s in SPECS.items()}
        # Cards give out more than they are asked for.
        with scarce(SPARE + 64 * MIB * (1 if room else -1)), monkeypatch.context() as within:
            if room:
                within.setattr(cuda._cuda.CardMemory, "read", None)
                within.setattr(cuda._cuda.CardMemory, "write", None)
            kept = card.keep(parts)
            sizes = {name: [part.nbytes for part in found] for name, found in kept.items()}
        assert sizes == {n: [host.read(n, at).nbytes for at in parts[n]] for n in SPECS}
        assert card.kept_bytes(parts) == host.kept_bytes(parts) == sum(map(sum, sizes.values()))
        like = host.keep(parts)
        for name, spec in SPECS.items():
            raw = np.frombuffer(rng.randbytes(spec.nbytes), np.uint8)
            for pools, found in ((host, like), (card, kept)):
                pools.load(name, raw)
                for at, part in zip(parts[name], found[name], strict=True):
                    pools.put_back(name, at, part)
        require_same(host, card)


def test_of_a_split_model_each_device_keeps_its_own() -> None:
    host, _ = filled(7)
    homes = {name: i % 2 for i, name in enumerate(SPECS)}
    split = SplitPools(SPECS, [backend(), CpuBackend(1)], homes)
    for name in SPECS:
        split.load(name, host.raw(name))
    parts: dict[str, list[Index]] = {name: [0, slice(0, 1)] for name in SPECS}
    kept = split.keep(parts)
    assert split.kept_bytes(parts) == sum(part.nbytes for found in kept.values() for part in found)
    for name in SPECS:
        assert all(isinstance(part, np.ndarray) == homes[name] for part in kept[name])
        split.write(name, 0, 0)
        split.put_back(name, 0, kept[name][0])
    require_same(host, split)


def test_what_was_kept_fits_one_shape() -> None:
    _, card = filled(6)
    part = card.keep({"f32": [slice(0, 2)]})["f32"][0]
    before = card.raw("f32")
    with pytest.raises(BackendError, match=r"'f32': 280 bytes were kept, not \(3, 5, 7\)"):
        card.put_back("f32", slice(3, 6), part)
    assert np.array_equal(card.raw("f32"), before)


def test_parts_of_other_shapes_are_not_copied() -> None:
    _, card = filled(4)
    before = card.raw("f32")
    with pytest.raises(BackendError, match=r"'f32': a part of \(2, 5, 7\) .* to \(3, 5, 7\)"):
        card.copy("f32", slice(0, 2), slice(3, 6))
    assert np.array_equal(card.raw("f32"), before)


def test_memory_is_zero_when_made() -> None:
    pools = backend().pools(SPECS)
    assert pools.nbytes == sum(s.nbytes for s in SPECS.values())
    assert not any(pools.raw(name).any() for name in SPECS)
    again = backend().pools({"one": SPECS["one"]})
    again.add({"more": SPECS["f32"]})
    assert set(again.specs) == {"one", "more"} and not again.raw("more").any()
    # What an array of a state is changed to does not reach the card.
    pools.array("f32")[...] = 1
    assert not pools.raw("f32").any()


def test_scratch_grows_and_parts_lie_apart() -> None:
    pools = backend().pools({})
    small = pools.scratch(1000)
    assert small.size >= 1000 and pools.scratch(10) is small
    other = pools.scratch(500, "workspace")
    assert other is not small and other.address != small.address
    large = pools.scratch(5000)
    assert large is not small and pools.scratch(1000) is large
    assert not pools.scratch_bytes().any()
    pools.fill = 0xAB
    pools.scratch(64, "workspace")
    assert (pools.scratch_bytes("workspace") == 0xAB).all() and not pools.scratch_bytes().any()


def test_sessions_that_do_not_fit_are_refused_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = {"a": TensorSpec((40, MIB // 4)), "b": TensorSpec((60, MIB // 4))}
    with scarce(50 * MIB):
        made = Counted(monkeypatch, "CardMemory")
        told = r"cuda: the session's memory needs 100 MiB, and device 0 has (\d+) MiB free; use a s"
        with pytest.raises(BackendError, match=told) as error:
            backend().pools(wanted)
        assert made.n == 0
        free = int(str(error.value).split("has ")[1].split()[0])
        assert 40 <= free <= 50
        backend().pools({"a": wanted["a"]})
    assert backend().pools(wanted).nbytes == 100 * MIB


def test_weights_that_do_not_fit_are_refused_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = TensorSpec((8, MIB // 4))
    weights = {f"w{i}": HostTensor(spec, np.zeros(spec.nbytes, np.uint8)) for i in range(8)}
    told = r"cuda: the model needs {} MiB, and device 0 has \d+ MiB free; use fewer layers"
    with scarce(32 * MIB):
        made = Counted(monkeypatch, "CardMemory")
        with pytest.raises(BackendError, match=told.format(64)):
            backend().load_weights(weights)
        assert made.n == 0
    with scarce(DEMO.stat().st_size // 2):
        made = Counted(monkeypatch, "CardMemory")
        with pytest.raises(BackendError, match=told.format(r"\d+")):
            rr.load(DEMO, device="cuda")
        assert made.n == 0
    backend().load_weights(weights)


def test_what_only_the_card_can_refuse_has_both_numbers() -> None:
    """Memory that another program takes between question and answer."""
    with scarce(20 * MIB), pytest.raises(BackendError, match=r"^cuda: 64 MiB of .* \d+ MiB free"):
        backend().pools({}).scratch(64 * MIB)
    assert backend().pools({}).scratch(64 * MIB).size == 64 * MIB


def test_memory_is_given_back() -> None:
    card = cuda._cuda.Card(0)
    before = card.free_bytes
    pools = backend().pools({"s": TensorSpec((64, MIB // 4))})
    assert before - card.free_bytes >= 60 * MIB
    del pools
    # A driver may keep a little for itself.
    assert before - card.free_bytes <= (0 if EMULATED else 8 * MIB)


def test_plans_take_no_pools_but_their_own() -> None:
    g = Graph("g")
    state = g.state("s", (4, 8), "f32")
    g.output("t", g.write_rows(state, g.input("rows", (1, 8)), g.input("idx", (1,), "i32")))
    plan = backend().compile(g)
    with pytest.raises(GraphError, match="bound to pools that its backend's `pools` makes"):
        plan.bind(plan.own_weights(), Pools(plan.states))
    # Another card's stream does not wait for this one's.
    with pytest.raises(GraphError, match="bound to pools that its backend's `pools` makes"):
        plan.bind(plan.own_weights(), cuda.CudaBackend().pools(plan.states))
    plan.bind(plan.own_weights(), plan.pools())


def test_what_a_bound_plan_has_on_the_card_goes_with_it() -> None:
    """Without the collector of cycles: its buffers, and what was recorded of its run."""
    g = Graph()
    g.output("y", g.rms_norm(g.input("x", (64, 1024)), eps=1e-6))
    plan = backend().compile(g)
    pools = plan.pools()
    weights = plan.own_weights()
    plan.bind(weights, pools).run()
    before = backend().card.free_bytes
    gc.disable()
    try:
        for _ in range(3):
            bound = plan.bind(weights, pools)
            bound.run()
            native = weakref.ref(bound.native)
            assert backend().card.free_bytes < before or not EMULATED
            del bound
            assert native() is None
            assert backend().card.free_bytes == before or not EMULATED
    finally:
        gc.enable()
