"""Wrappers of backends, plans and bound plans pass on every member that they do not change."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import ahead_rig
import numpy as np
import pytest
import refusing
from pages import blocks
from riverrun.backends import Backend, BoundPlan, Plan, Pools, SplitBackend, open_backend
from riverrun.backends.base import Capabilities, Weights
from riverrun.backends.checksums import ChecksumPlan
from riverrun.backends.debug import BoundTimed, TimedPlan, WatchedBackend
from riverrun.backends.delegate import Delegate
from riverrun.backends.kept import BoundKeeping, KeepingPlan
from riverrun.backends.scheduler import SplitPools
from riverrun.bench import throughput
from riverrun.graph import Graph, TensorSpec, host_tensor

WRAPPERS = {
    WatchedBackend: {"supports", "compile", "load_weights"},
    refusing.Without: {"name", "supports", "compile", "load_weights"},
    ahead_rig.LateBackend: {"capabilities", "supports", "compile", "pools", "load_weights"},
    TimedPlan: {"graph", "kind", "inputs", "states", "constants", "bind", "own_weights"},
    KeepingPlan: {"graph", "kind", "inputs", "states", "constants", "bind", "own_weights"},
    ChecksumPlan: {"graph", "kind", "inputs", "states", "constants", "bind", "own_weights"},
    BoundTimed: {"run", "start", "profile"},
    BoundKeeping: {"run", "start", "profile", "outputs"},
    throughput.TimedBoundPlan: {"run", "start"},
}


def public(cls: type) -> set[str]:
    """Names of methods, attributes, and attributes that are only declared."""
    declared = {n for c in cls.__mro__ for n in inspect.get_annotations(c)}
    return {n for n in {*dir(cls), *declared} if not n.startswith("_")}


ALIKE = Capabilities(on_host=False, runs_ahead=True, threads=77)


class Probe:
    """Has every attribute: a token of its name, or what its capabilities say."""

    def __getattr__(self, name: str) -> Any:
        return ALIKE if name == "capabilities" else getattr(ALIKE, name, {"of": name})


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda w: w.__name__)
def test_every_member_is_passed_on(wrapper: type) -> None:
    base = next(b for b in (Backend, Plan, BoundPlan) if issubclass(wrapper, b))
    made: Any = wrapper.__new__(wrapper)
    made.inner = Probe()
    changed = WRAPPERS[wrapper]
    for name in (public(base) | {"only_of_the_inner_one"}) - changed:
        assert getattr(made, name) == getattr(Probe(), name), name
    assert all(hasattr(wrapper, n) or n not in dir(base) for n in changed)


def test_the_list_of_wrappers_is_whole() -> None:
    def below(cls: type) -> set[type]:
        return {cls}.union(*(below(c) for c in cls.__subclasses__()))

    own = {c for c in below(Delegate) if c is not Delegate and c.__module__.startswith("riverrun")}
    assert {c.__name__ for c in own} - {"BoundChecksum"} <= {c.__name__ for c in WRAPPERS}


@pytest.mark.usefixtures("all_processors")
def test_a_wrapper_that_changes_capabilities_is_consistent() -> None:
    late = ahead_rig.LateBackend(open_backend("cpu", 2))
    assert late.runs_ahead and late.threads == 2 and late.on_host
    assert late.kernels and late.fma_rate() and late.copy_rate() is None


def test_an_attribute_of_nobody_is_missing() -> None:
    watched: Any = WatchedBackend(open_backend("reference"), 1)
    for name, whose in (("nothing", "ReferenceBackend"), ("_hidden", "WatchedBackend")):
        with pytest.raises(AttributeError, match=whose):
            getattr(watched, name)


def two() -> SplitPools:
    specs = {"a": TensorSpec((4, 8)), "b": TensorSpec((2, 3))}
    return SplitPools(specs, [open_backend("cpu", 1)] * 2, {"a": 0, "b": 1})


def test_split_pools_have_every_member_of_pools() -> None:
    pools, seen = two(), set()
    plain = Pools(pools.specs)
    calls: dict[str, tuple[Any, ...]] = {
        "write": ("b", 1, 5),
        "copy": ("b", 1, 0),
        "array": ("b",),
        "read": ("b", 0),
        "read_all": (0, {"b": np.empty(3, np.float32)}),
        "keep": ({"b": [0, slice(1, 2)], "a": [(3,)]},),
        "kept_bytes": ({"b": [0, slice(1, 2)], "a": [(3,)]},),
        "put_back": ("b", 1, np.arange(3, dtype=np.float32)),
        "to_host": ("b", np.arange(3, dtype=np.float32)),
        "raw": ("b",),
        "load": ("b", np.arange(24, dtype=np.uint8)),
        "scratch": (100,),
        "scratch_bytes": (),
        "add": ({"c": TensorSpec((5,))},),
    }
    for name in (*calls, *sorted(public(Pools) - calls.keys())):
        got, want = getattr(pools, name), getattr(plain, name)
        if callable(got):
            got, want = got(*calls[name]), want(*calls[name])
        np.testing.assert_equal(got, want, name)
        seen.add(name)
    assert seen == public(Pools) and pools.homes["c"] == 0
    pools.fill = 7
    assert all((part.scratch(10) == 7).all() for part in pools.parts) and pools.fill == 7


def test_the_backend_of_the_page_takes_weights_with_progress() -> None:
    scope: dict[str, Any] = {}
    exec(blocks("docs/adding-a-backend.md", "python")[0], scope)
    backend: Backend = scope["ToyBackend"]()
    weights = backend.load_weights({"w": host_tensor(np.ones(4))})
    assert isinstance(weights, Weights) and weights.progress is None
    weights.progress = lambda nbytes: None
    assert backend.capabilities == Capabilities()


@pytest.mark.parametrize("device", ["cpu", "reference", "null", "cpu,reference"])
def test_weights_of_every_backend_have_progress(device: str) -> None:
    moved: list[int] = []
    weights = open_backend(device, 1).load_weights({}, moved.append)
    assert isinstance(weights, Weights)
    weights.moved(3)
    weights.progress = None
    weights.moved(4)
    assert moved == [3]


@pytest.mark.parametrize("device", ["cpu", "reference", "cpu,reference"])
def test_a_bound_plan_goes_when_nobody_has_it(device: str) -> None:
    """Without the collector of cycles: what a bound plan has recorded on a card goes with it."""
    g = Graph()
    g.output("y", g.rms_norm(g.input("x", (2, 8)), eps=1e-6))
    backend = open_backend(device, 1)
    plan = backend.compile(g)
    gc.disable()
    try:
        bound = plan.bind(plan.own_weights(), plan.pools())
        bound.run()
        gone = weakref.ref(bound)
        del bound
        assert gone() is None
    finally:
        gc.enable()


def test_split_backends_of_one_kind_are_not_wrappers() -> None:
    split = SplitBackend([open_backend("cpu", 1), open_backend("reference")])
    assert not isinstance(split, Delegate) and split.copy_rate() is None
