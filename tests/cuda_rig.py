"""What tests of the CUDA backend share.

They run on a card, or with kernels that are emulated on the processor, where what takes long is
marked `full`. Without either they skip."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import pytest
import riverrun.models.quant
import riverrun.ops  # noqa: F401
from riverrun.backends import cuda
from riverrun.backends.cuda import CudaBackend
from riverrun.backends.harness import build
from riverrun.graph.case import BoundCase, Case, bind_case, f32, rand
from riverrun.graph.errors import BackendError
from riverrun.ops.mul_mat import MulMat

# Kernels that are there for the asking are tested like the others.
os.environ.setdefault("RIVERRUN_CUDA_CHUNKED", "1")

T = TypeVar("T")
# Types whose products of few rows run on tensor cores.
STEP_TYPES = (
    *("q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"),
    *("iq4_nl", "iq4_xs", "mxfp4"),
)
EMULATED = cuda.emulated()
# Bytes of an emulated card; read anew at each request.
MEMORY = "RIVERRUN_EMULATE_MEMORY"
# Bytes of shared memory that a block of an emulated card may have, likewise.
SHARED = "RIVERRUN_EMULATE_SHARED"
# Its compute capability, likewise.
CAPABILITY = "RIVERRUN_EMULATE_CAPABILITY"


def _lack() -> str:
    """Why nothing can run here, "" where it can."""
    try:
        return "" if cuda.cards() else "this machine has no CUDA device"
    except BackendError as error:
        return str(error)


needs_cuda = pytest.mark.skipif(bool(_lack()), reason=_lack() or "there is a CUDA device")
needs_warpgroups = pytest.mark.skipif(
    bool(_lack()) or not cuda.serves_warpgroups(0),
    reason="wgmma needs a card of compute capability 9.0 and a build for 90a",
)
# For what an emulated card takes long for; a real one runs it always.
slow = [pytest.mark.full] if EMULATED else []
MIB = 1 << 20


@cache
def backend(graphs: bool = True) -> CudaBackend:
    """The first card; graphs: whether runs are recorded."""
    return CudaBackend(graphs=graphs)


def product(of: str, n: int, m: int, k: int) -> BoundCase:
    """x [n, k] times w [m, k] of this type."""
    return bind_case(MulMat, Case(f"{of},{n}x{m}x{k}", x=f32(n, k), w=rand(of, m, k)))


def thinned(many: T, few: T) -> T:
    """What a card gets, or what an emulated one does."""
    return few if EMULATED else many


class Op:
    """The node of a case with its memory: runs and reads as often as is wanted."""

    def __init__(self, case: BoundCase, on: CudaBackend | None = None, kind: str = "step") -> None:
        self.built = build(case)
        plan = (on or backend()).compile(self.built.graph, kind)
        self.pools = plan.pools()
        self.bound = plan.bind(plan.own_weights(), self.pools)
        self.reset()

    def reset(self) -> None:
        """Inputs and states as the case has them."""
        for name, tensor in self.built.states.items():
            self.pools.load(name, tensor.raw)
        for name, array in self.built.inputs.items():
            self.bound.inputs[name][...] = array

    def run(self) -> dict[str, bytes]:
        """Every output, as bytes."""
        self.bound.run()
        return {name: array.tobytes() for name, array in self.bound.outputs.items()}

    def states(self) -> dict[str, bytes]:
        """Every state, as bytes."""
        return {name: self.pools.raw(name).tobytes() for name in self.pools.specs}


class Counted:
    """A class of the module whose instances are counted while it stands in for the original."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.n = 0
        made = getattr(cuda._cuda, name)

        def make(*arguments: Any) -> Any:
            self.n += 1
            return made(*arguments)

        monkeypatch.setattr(cuda._cuda, name, make)


class Calls:
    """How often a method is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> None:
        self.n = 0
        method = getattr(of, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.n += 1
            return method(*arguments, **named)

        monkeypatch.setattr(of, name, call)


@contextmanager
def scarce(free: int) -> Iterator[None]:
    """Within, the first card has about so many bytes free."""
    gc.collect()  # else memory of other tests comes free within
    card = cuda._cuda.Card(0)
    if not EMULATED:
        filler = cuda._cuda.CardMemory(card, card.free_bytes - free)
        yield
        del filler
        return
    total, before = cuda.cards()[0]["total_bytes"], os.environ.get(MEMORY)
    os.environ[MEMORY] = str(total - card.free_bytes + free)
    try:
        yield
    finally:
        os.environ.pop(MEMORY)
        if before is not None:
            os.environ[MEMORY] = before
