"""Arrays of other libraries in plans, and the card's in other libraries, without a copy.

What stands for another library here is a class of the test's own; torch and cupy are tried on a
card where they are installed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from cuda_rig import EMULATED, MIB, backend, needs_cuda
from riverrun.backends import cuda
from riverrun.backends.cuda_arrays import DeviceTensor, stream_handle
from riverrun.graph import Graph, TensorSpec, dtype
from riverrun.graph.errors import BackendError

pytestmark = needs_cuda
TYPES = ("f32", "f16", "bf16", "i32")


def plan_of(kind: str, shape: tuple[int, ...] = (3, 5)) -> cuda.CudaPlan:
    """y = x above b."""
    g = Graph("stacked")
    x, b = g.input("x", shape, kind), g.input("b", shape, kind)
    g.output("y", g.concat(x, b, axis=0))
    return backend().compile(g)


def drawn(kind: str, shape: tuple[int, ...] = (3, 5), seed: int = 0) -> np.ndarray:
    """Values of a type's storage, none of them NaN."""
    rng, storage = np.random.default_rng(seed), dtype(kind).storage
    if storage.kind == "f":
        return rng.standard_normal(shape).astype(storage)
    return rng.integers(1, 1 << 14, shape).astype(storage)


class Foreign:
    """An array of another library, which has a stream of its own; what it says of itself can be
    changed."""

    def __init__(self, values: np.ndarray, kind: str, skip: int = 0) -> None:
        card = cuda._cuda.Card(0)
        self.memory = cuda._cuda.CardMemory(card, values.nbytes + skip)
        self.memory.write(skip, np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        self.tensor = DeviceTensor(self.memory, skip, TensorSpec(values.shape, dtype(kind)))
        self.address = self.tensor.address


class Packed(Foreign):
    """One that speaks DLPack."""

    place: tuple[int, int] = (2, 0)
    asked: Any = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.asked = stream
        return self.tensor.__dlpack__(stream=stream)


class Interface(Foreign):
    """One that has a CUDA array interface."""

    def __init__(self, values: np.ndarray, kind: str, skip: int = 0, **said: Any) -> None:
        super().__init__(values, kind, skip)
        self.__cuda_array_interface__ = self.tensor.__cuda_array_interface__ | said


def stacked(bound: cuda.BoundCuda, x: np.ndarray, b: np.ndarray) -> None:
    assert bound.outputs["y"].tobytes() == x.tobytes() + b.tobytes()


@pytest.mark.parametrize("protocol", [Packed, Interface])
@pytest.mark.parametrize("kind", TYPES)
def test_a_plan_reads_an_array_in_place(kind: str, protocol: type[Foreign]) -> None:
    x, b, later = (drawn(kind, seed=i) for i in range(3))
    array = protocol(x, kind)
    plan = plan_of(kind)
    bound = plan.bind(plan.own_weights(), plan.pools(), arrays={"x": array})
    assert set(bound.inputs) == {"b"}
    assert bound.device("x").address == array.address
    bound.inputs["b"][...] = b
    bound.run()
    stacked(bound, x, b)
    array.memory.write(0, later.reshape(-1).view(np.uint8))
    array.memory.card.synchronize()
    bound.run()
    stacked(bound, later, b)
    if isinstance(array, Packed):
        assert array.asked == plan.backend.card.stream


@pytest.mark.parametrize("kind", TYPES)
def test_results_go_to_an_array(kind: str) -> None:
    x, b = drawn(kind), drawn(kind, seed=1)
    into, plan = Packed(np.zeros((6, 5), dtype(kind).storage), kind), plan_of(kind)
    bound = plan.bind(plan.own_weights(), plan.pools(), results={"y": into}, host_outputs=False)
    bound.inputs["x"][...], bound.inputs["b"][...] = x, b
    bound.run()
    assert bound.outputs == {}
    assert into.tensor.numpy().tobytes() == x.tobytes() + b.tobytes()
    assert bound.device("y").numpy().tobytes() == x.tobytes() + b.tobytes()


def test_states_and_blocks_are_shared_as_well() -> None:
    g = Graph("state")
    state = g.state("s", (4, 64), "q8_0")
    g.output("t", g.write_rows(state, g.input("rows", (1, 64)), g.input("idx", (1,), "i32")))
    plan = backend().compile(g)
    pools = plan.pools()
    bound = plan.bind(plan.own_weights(), pools, host_outputs=False)
    bound.inputs["rows"][...] = drawn("f32", (1, 64))
    bound.inputs["idx"][...] = 2
    bound.run()
    shared = bound.device("t")
    assert shared.address == pools.states["s"].address and shared.shape == (4, 64)
    assert shared.__cuda_array_interface__["shape"] == (4, 68)
    assert shared.numpy().tobytes() == pools.raw("s").tobytes() and pools.raw("s").any()


@pytest.mark.parametrize("kind", TYPES)
def test_what_a_tensor_says_of_itself(kind: str) -> None:
    made = backend().empty((3, 5), kind)
    said, item = made.__cuda_array_interface__, dtype(kind).storage.itemsize
    assert (said["version"], said["shape"], said["strides"]) == (3, (3, 5), None)
    assert said["data"] == (made.address, False) and said["stream"] == backend().card.stream
    assert np.dtype(said["typestr"]) == dtype(kind).storage
    assert made.__dlpack_device__() == (2, 0)
    got = backend().card.received(made.__dlpack__())
    assert (got.address, got.device, got.shape, got.strides) == (
        made.address,
        (2, 0),
        (3, 5),
        (5, 1),
    )
    codes = {"f32": 2, "f16": 2, "bf16": 4, "i32": 0}
    assert got.dtype == (codes[kind], 8 * item, 1)
    assert not made.numpy().any() and repr(made) == f"DeviceTensor({kind}[3,5], cuda:0)"


def test_capsules_are_used_once_and_keep_the_memory() -> None:
    card = backend().card
    before = card.free_bytes
    made = backend().empty((8, MIB // 4))
    taken, dropped = made.__dlpack__(stream=-1), made.__dlpack__(stream=2)
    held = card.received(taken)
    with pytest.raises(ValueError, match="nobody has used"):
        card.received(taken)
    del made, dropped, taken
    assert before - card.free_bytes >= 8 * MIB
    del held
    assert before - card.free_bytes < 8 * MIB


def test_requests_that_are_not_met() -> None:
    made = backend().empty((2,))
    made.__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 0), copy=False)
    with pytest.raises(BufferError, match="shared as it is"):
        made.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="is on cuda:0"):
        made.__dlpack__(dl_device=(1, 0))
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        made.__dlpack__(stream=0)


def test_a_bound_plan_keeps_its_arrays() -> None:
    array = Interface(drawn("f32"), "f32")
    kept, plan = weakref.ref(array), plan_of("f32")
    bound = plan.bind(plan.own_weights(), plan.pools(), arrays={"x": array})
    view = bound.device("x")
    del array, bound
    gc.collect()
    assert kept() is not None and np.array_equal(view.numpy(), drawn("f32"))
    del view
    gc.collect()
    assert kept() is None


def test_runs_on_a_stream_of_the_callers() -> None:
    card, plan = cuda._cuda.Card(0), plan_of("f32")
    x, b = drawn("f32"), drawn("f32", seed=1)
    for on in (backend(), cuda.CudaBackend(graphs=False)):
        plan = on.compile(plan.graph)
        bound = plan.bind(plan.own_weights(), plan.pools())
        for i, stream in enumerate((card.stream, on.card.stream, 0, 1, 2)):
            bound.inputs["x"][...], bound.inputs["b"][...] = x + i, b
            bound.run(stream=stream)
            bound.finish()
            stacked(bound, x + np.float32(i), b)


def test_faults_on_a_stream_of_the_callers_are_told_by_finish() -> None:
    g = Graph("state")
    state = g.state("s", (4, 8), "f32")
    g.output("t", g.write_rows(state, g.input("rows", (1, 8)), g.input("idx", (1,), "i32")))
    plan = backend().compile(g)
    bound = plan.bind(plan.own_weights(), plan.pools())
    bound.inputs["idx"][...] = 4
    bound.run(stream=1)
    with pytest.raises(BackendError, match="write_rows"):
        bound.finish()
    bound.finish()


class Torch:
    cuda_stream = 7


class Cupy:
    ptr = 8


class Other:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 9


def test_streams_of_other_libraries_are_known() -> None:
    assert [stream_handle(s) for s in (0, 5, Torch(), Cupy(), Other())] == [0, 5, 7, 8, 9]
    for wrong in ("main", -1, object()):
        with pytest.raises(BackendError, match=r"expected a stream's handle .*, got"):
            stream_handle(wrong)


def misplaced(place: tuple[int, int]) -> Packed:
    array = Packed(drawn("f32"), "f32")
    array.place = place
    return array


class Unshared(Packed):
    def __dlpack__(self, stream: int | None = None) -> Any:
        raise BufferError("it needs a gradient")


X = drawn("f32")
REFUSED = {
    "host array": (lambda: X, r"should be on cuda:0, is in host memory; copy it to that card"),
    "no array": (lambda: [1.0], "with __dlpack__ or __cuda_array_interface__, got list"),
    "another card": (lambda: misplaced((2, 1)), "should be on cuda:0, is in cuda:1"),
    "another kind": (lambda: misplaced((10, 0)), "is in a device of DLPack's kind 10"),
    "host address": (
        lambda: Interface(X, "f32", data=(X.ctypes.data, False)),
        "should be on cuda:0, is in host memory",
    ),
    "shape": (
        lambda: Packed(X.T, "f32"),
        r"should have shape \(3, 5\), has \(5, 3\); reshape or cut",
    ),
    "type": (lambda: Packed(X.view(np.int32), "i32"), "should hold f32, holds int32; convert it"),
    "type said": (
        lambda: Interface(X, "f32", typestr="<c8"),
        "should hold f32, holds complex64; convert it",
    ),
    "strides": (
        lambda: Interface(np.zeros((5, 3), np.float32), "f32", shape=(3, 5), strides=(4, 12)),
        r"should have byte strides \(20, 4\), has \(4, 12\); give a contiguous copy",
    ),
    "mask": (lambda: Interface(X, "f32", mask=X), "a mask, which plans do not read"),
    "alignment": (
        lambda: Packed(X, "f32", skip=4),
        "begin at a multiple of 64 bytes, begins at 0x",
    ),
    "not to be shared": (lambda: Unshared(X, "f32"), "cannot be shared: it needs a gradient"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_do_not_fit_are_refused(case: str) -> None:
    make, told = REFUSED[case]
    plan = plan_of("f32")
    with pytest.raises(BackendError, match=f"cuda: input 'x' .*{told}"):
        plan.bind(plan.own_weights(), plan.pools(), arrays={"x": make()})


def test_names_that_are_not_there_are_refused() -> None:
    plan, array = plan_of("f32"), Packed(X, "f32")
    weights, pools = plan.own_weights(), plan.pools()
    with pytest.raises(BackendError, match=r"inputs of the plan are \['b', 'x'\], .* \['z'\]"):
        plan.bind(weights, pools, arrays={"z": array})
    with pytest.raises(BackendError, match=r"outputs of the plan are \['y'\], .* \['x'\]"):
        plan.bind(weights, pools, results={"x": array})
    with pytest.raises(BackendError, match=r"output 'y' should have shape \(6, 5\), has \(3, 5\)"):
        plan.bind(weights, pools, results={"y": array})
    with pytest.raises(BackendError, match=r"are \['b', 'x', 'y'\], got 'z'"):
        plan.bind(weights, pools).device("z")


class Library:
    """torch or cupy, called by the same names."""

    def __init__(self, name: str) -> None:
        if EMULATED:
            pytest.skip("an emulated card is unknown to other libraries")
        self.xp = pytest.importorskip(name)
        self.torch = name == "torch"
        if not self.xp.cuda.is_available():
            pytest.skip(f"{name} sees no CUDA device")

    def array(self, values: np.ndarray, kind: str) -> Any:
        """Values on the card, arrived there; bf16 as bfloat16 where the library has it."""
        made = self._sent(values, kind)
        (self.xp.cuda if self.torch else self.xp.cuda.Device()).synchronize()
        return made

    def _sent(self, values: np.ndarray, kind: str) -> Any:
        if not self.torch:
            return self.xp.asarray(values)
        if kind == "bf16":
            return self.xp.from_numpy(values.view(np.int16)).cuda().view(self.xp.bfloat16)
        return self.xp.from_numpy(values).cuda()

    def view(self, tensor: DeviceTensor) -> Any:
        """The library's own array over the tensor's memory."""
        if self.torch or tensor.dtype.name != "bf16":
            return self.xp.from_dlpack(tensor)
        return self.xp.asarray(tensor)

    def by_interface(self, tensor: DeviceTensor) -> Any:
        """The same by the CUDA array interface."""
        if self.torch:
            return self.xp.as_tensor(tensor, device="cuda")
        return self.xp.asarray(tensor)

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr() if self.torch else array.data.ptr)

    def bits(self, array: Any) -> bytes:
        """Its bytes in host memory, by the library's own copy."""
        if not self.torch:
            return bytes(self.xp.asnumpy(array).tobytes())
        return bytes(array.contiguous().view(self.xp.uint8).cpu().numpy().tobytes())

    def set(self, array: Any, other: Any) -> None:
        array[...] = other

    def stream(self) -> Any:
        return self.xp.cuda.Stream() if self.torch else self.xp.cuda.Stream(non_blocking=True)

    def on(self, stream: Any) -> Any:
        return self.xp.cuda.stream(stream) if self.torch else stream

    def keep_busy(self) -> None:
        """Tens of milliseconds of work on the current stream."""
        big = self.xp.ones(1 << 26, dtype=self.xp.float32, **self._where())
        for _ in range(100):
            self.xp.sin(big, out=big)

    def _where(self) -> dict[str, str]:
        return {"device": "cuda"} if self.torch else {}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_libraries_share_memory_with_plans(name: str, kind: str) -> None:
    library = Library(name)
    x, b = drawn(kind), drawn(kind, seed=1)
    given, plan = library.array(x, kind), plan_of(kind)
    bound = plan.bind(plan.own_weights(), plan.pools(), arrays={"x": given})
    assert bound.device("x").address == library.pointer(given)
    bound.inputs["b"][...] = b
    bound.run()
    stacked(bound, x, b)
    seen = library.view(bound.device("y"))
    assert library.pointer(seen) == bound.device("y").address
    assert library.bits(seen) == x.tobytes() + b.tobytes()
    assert library.pointer(library.by_interface(bound.device("y"))) == library.pointer(seen)
    library.set(library.view(bound.device("x")), library.array(b, kind))
    bound.run(stream=1)
    bound.finish()
    stacked(bound, b, b)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_order_holds_on_a_stream_of_a_library(name: str) -> None:
    library, shape = Library(name), (512, 512)
    x, late, b = (drawn("f32", shape, seed) for seed in range(3))
    given, newer = library.array(x, "f32"), library.array(late, "f32")
    into = library.array(np.zeros((1024, 512), np.float32), "f32")
    plan, stream = plan_of("f32", shape), library.stream()
    bound = plan.bind(plan.own_weights(), plan.pools(), arrays={"x": given}, results={"y": into})
    bound.inputs["b"][...] = b
    with library.on(stream):
        library.keep_busy()
        library.set(given, newer)
        bound.run(stream=stream)
        # In the stream's order, not the host's: the copy sees what the run wrote.
        copied = into + 0
        library.set(given, 0)
    bound.finish()
    stacked(bound, late, b)
    stream.synchronize()
    assert library.bits(copied) == late.tobytes() + b.tobytes()


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_binding_waits_for_a_library_and_views_wait_for_runs(name: str) -> None:
    library, shape = Library(name), (512, 512)
    x, b = drawn("f32", shape), drawn("f32", shape, 1)
    given, newer = library.array(np.zeros_like(x), "f32"), library.array(x, "f32")
    plan, stream = plan_of("f32", shape), library.stream()
    with library.on(stream):
        library.keep_busy()
        library.set(given, newer)
        bound = plan.bind(plan.own_weights(), plan.pools(), arrays={"x": given})
        bound.inputs["b"][...] = b
        bound.start()
        seen = library.view(bound.device("y")) + 0
        stream.synchronize()
    bound.finish()
    stacked(bound, x, b)
    assert library.bits(seen) == x.tobytes() + b.tobytes()
