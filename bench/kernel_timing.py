"""Products of one level, timed by one thread: the process behind `riverrun bench kernels`.

`python -m riverrun.bench.kernel_timing` is that process (`apart.serve`); it says its level first,
and answers with nothing where the level has no kernel of its own for a product.

Weights in the first-level cache: three groups of 16 rows against one, so that what does not belong
to the product itself, the call and the quantisation of x, is in both and goes. Weights from memory:
whole runs over more bytes than caches hold, after a sweep over others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from ..backends.base import aligned
from ..backends.cpu import ROWS16, BoundCpu, CpuBackend, CpuPlan, instruction_sets
from ..backends.native import Packing
from ..graph import Graph, HostTensor, TensorSpec
from ..graph.case import rand
from ..graph.dtype import dtype
from ..models import load  # noqa: F401  (registers the ops)
from .apart import Row, serve

GROUP, BLOCK = 16, 32  # rows and values of a block
FEW, MANY = GROUP, 3 * GROUP  # rows whose difference is timed in the cache
CACHE_K, CACHE_K_OF_FLOATS = 512, 128
CACHE_SAMPLES, SAMPLE_S = 25, 1e-3
MEMORY_K, MEMORY_BYTES, MEMORY_SAMPLES = 4096, 128 << 20, 5
MOST_PRODUCTS = 1 << 33  # of a run from memory
WIDE = ("q8_0", "iq4_nl", "iq4_xs")  # whose products with x need more room than 16 bits
FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Asked:
    """Which product: place, of the weights, is "cache" or "memory"."""

    op: str
    type: str
    columns: int
    place: str


@dataclass(frozen=True)
class Timed:
    """A block of 16 rows x 32 values with all columns, the shortest of the samples: seconds,
    instructions (None where they are not counted), bytes of weights.

    clock, peak, read: cycles, products and bytes a second of this core, measured beside it.
    instruction: the one that peak is of, "" where none is known; read: None where that was not
    measured."""

    seconds: float
    instructions: float | None
    nbytes: float
    clock: float
    instruction: str
    peak: float
    read: float | None


class Shortest:
    """Runs a bound plan so many times a sample, and keeps the shortest sample's seconds and the
    least instructions."""

    def __init__(self, bound: BoundCpu, runs: int) -> None:
        self.bound, self.runs = bound, runs
        self.seconds, self.instructions = np.inf, None if bound.repeat(1)[1] is None else np.inf

    def sample(self) -> None:
        """Take another sample."""
        seconds, counted = self.bound.repeat(self.runs)
        self.seconds = min(self.seconds, seconds)
        if counted is not None and self.instructions is not None:
            self.instructions = min(self.instructions, counted)


class Core:
    """What the core reaches beside a product of a type: the best of the samples."""

    def __init__(self, backend: CpuBackend, of: str) -> None:
        self._backend, self._type = backend, of
        self.clock, self.instruction, self.peak = 0.0, "", 0.0

    def sample(self) -> None:
        """Take another sample."""
        self.clock = max(self.clock, self._backend.clock_rate())
        if self._type in FLOATS:
            self.instruction = "multiply-add"
            self.peak = max(self.peak, self._backend.fma_rate() / 2)
        else:
            self.instruction, peak = self._backend.dot_peak(self._type in WIDE)
            self.peak = max(self.peak, peak)


class Products:
    """Times products with one thread. memory_bytes: of weights that come from memory."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self.backend, self.memory_bytes = CpuBackend(1), memory_bytes
        self._sweep = aligned(memory_bytes, filled=True)
        self._sweep[...] = 1

    def level(self, asked: Asked) -> str:
        """That of the kernel that takes a product: not every level has its own for every type."""
        return str(self._plan(asked, CACHE_K).choices[0].kernel.isa)

    def time(self, asked: Asked) -> Timed:
        """A product's figures."""
        return (self._from_cache if asked.place == "cache" else self._from_memory)(asked)

    def _from_cache(self, asked: Asked) -> Timed:
        k = CACHE_K_OF_FLOATS if asked.type in FLOATS else CACHE_K
        few, many = self._bind(asked, FEW, k), self._bind(asked, MANY, k)
        many.repeat(1)
        runs = max(1, int(SAMPLE_S / max(1e-7, many.repeat(1)[0])))
        core, least, most = (
            Core(self.backend, asked.type),
            Shortest(few, runs),
            Shortest(many, runs),
        )
        for i in range(CACHE_SAMPLES):
            for each in (core, least, most) if i % 5 == 0 else (least, most):
                each.sample()
        blocks = runs * (MANY - FEW) // GROUP * k // BLOCK
        counted = None
        if least.instructions is not None and most.instructions is not None:
            counted = most.instructions - least.instructions
        return self._timed(asked, k, core, most.seconds - least.seconds, counted, blocks)

    def _from_memory(self, asked: Asked) -> Timed:
        rows = memory_rows(asked, self.memory_bytes)
        core, whole = Core(self.backend, asked.type), Shortest(self._bind(asked, rows, MEMORY_K), 1)
        for _ in range(MEMORY_SAMPLES):
            core.sample()
            self._sweep.max()
            whole.sample()
        blocks = rows // GROUP * MEMORY_K // BLOCK
        read = self.backend.read_rate(self.memory_bytes, 2) if asked.columns == 1 else None
        return self._timed(asked, MEMORY_K, core, whole.seconds, whole.instructions, blocks, read)

    def _timed(
        self,
        asked: Asked,
        k: int,
        core: Core,
        seconds: float,
        counted: float | None,
        blocks: int,
        read: float | None = None,
    ) -> Timed:
        counted = None if counted is None else counted / blocks
        nbytes = float(dtype(asked.type).nbytes * GROUP * k // dtype(asked.type).block)
        if self._plan(asked, k).choices[0].packed:
            tensor = weight(asked.type, GROUP, k)
            nbytes = Packing(self.backend.module, tensor, ROWS16).nbytes
        figures = (core.clock, core.instruction, core.peak)
        return Timed(seconds / blocks, counted, nbytes * BLOCK / k, *figures, read)

    def _plan(self, asked: Asked, k: int) -> CpuPlan:
        return self.backend.compile(product(asked, GROUP, k))

    def _bind(self, asked: Asked, rows: int, k: int) -> BoundCpu:
        g = product(asked, rows, k)
        plan = self.backend.compile(g)
        bound = plan.bind(self.backend.load_weights(g.data), self.backend.pools(plan.states))
        bound.inputs["x"][...] = np.sin(np.arange(asked.columns * k)).reshape(asked.columns, k)
        return bound


def memory_rows(asked: Asked, nbytes: int) -> int:
    """Rows of a matrix of so many bytes, or of as many products as a run may take."""
    of = dtype(asked.type)
    rows = min(
        nbytes * of.block // (MEMORY_K * of.nbytes), MOST_PRODUCTS // (MEMORY_K * asked.columns)
    )
    return max(rows // GROUP, 1) * GROUP


def product(asked: Asked, rows: int, k: int) -> Graph:
    """Its graph; of mul_mat_id, one expert that all rows of x chose."""
    g, w = Graph("product"), weight(asked.type, rows, k)
    x = g.input("x", (asked.columns, k))
    if asked.op == "mul_mat":
        g.output("y", g.mul_mat(x, g.constant(w, "w")))
    else:
        experts = HostTensor(TensorSpec((1, rows, k), w.spec.dtype), w.raw)
        ids = g.input("ids", (asked.columns, 1), "i32")
        g.output("y", g.mul_mat_id(x, g.constant(experts, "w"), ids))
    return g


def weight(of: str, rows: int, k: int) -> HostTensor:
    """Random weights: the same few groups of rows again and again."""
    few = _few_rows(of, k)
    raw = np.resize(few, rows * few.size // FEW)
    return HostTensor(TensorSpec((rows, k), dtype(of)), raw)


@cache
def _few_rows(of: str, k: int) -> np.ndarray:
    return rand(of, FEW, k).draw(np.random.default_rng(0)).raw


def main() -> None:
    """A level's process."""
    products, level = Products(), instruction_sets()[-1]

    def respond(request: Any) -> Row:
        asked = Asked(**request)
        return asdict(products.time(asked)) if products.level(asked) == level else {}

    serve(level, respond)


if __name__ == "__main__":
    main()
