"""SwiGLU blocks of the experts that were chosen for each token, weighted and added up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, Fixed, Rand, f32, fixed, rand
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, Op, make_op, register
from ..graph.spec import TensorSpec
from .glu import Swiglu
from .mul_mat import QUANTISED_PRODUCT
from .mul_mat_id import MulMatId
from .ragged import require_dense_rows, require_plain


@register
class MoeSwiglu(Op):
    """y[n] = sum over u of weights[n, u] down[e] (silu(gate[e] x[n]) * (up[e] x[n])), e = ids[n, u]

    x: [N, K] f32, its rows may have gaps; weights: f32 and ids: i32, [N, U]; gate, up: [E, F, K],
    down: [E, M, F], each of a type that mul_mat_id takes, contiguous; y: [N, M] f32. A negative id
    adds nothing. Raises BackendError in a run when an id is E or more. Sources: Shazeer et al.
    2017, "Outrageously Large Neural Networks"; Shazeer 2020."""

    name, inputs, outputs = "moe_swiglu", ("x", "weights", "ids", "gate", "up", "down"), ("y",)
    constants = ("gate", "up", "down")
    rowwise = True
    fuses = ("sum",)
    tolerance = MulMatId.tolerance
    block_tolerance = 2 * QUANTISED_PRODUCT  # of one product after the other

    def infer(
        self,
        x: TensorSpec,
        weights: TensorSpec,
        ids: TensorSpec,
        gate: TensorSpec,
        up: TensorSpec,
        down: TensorSpec,
    ) -> TensorSpec:
        self.require(x.rank == 2, "x", "[N, K]", x.shape)
        require_dense_rows(self, "x", x)
        inner = MulMatId().infer(x, gate, ids)
        self.require(up.shape == gate.shape, "up", f"{gate.shape}, the gate's shape", up.shape)
        MulMatId().infer(x, up, ids)
        require_plain(self, "weights", weights, ids.shape, "f32")
        want = f"[{gate.shape[0]}, M, {gate.shape[1]}] for gate {gate.shape}"
        fits = down.rank == 3 and down.shape[::2] == gate.shape[:2]
        self.require(fits, "down", want, down.shape)
        return TensorSpec(MulMatId().infer(inner, down, ids).shape[::2])

    def reference(
        self,
        x: np.ndarray,
        weights: np.ndarray,
        ids: np.ndarray,
        gate: np.ndarray,
        up: np.ndarray,
        down: np.ndarray,
    ) -> np.ndarray:
        product = MulMatId().reference
        with np.errstate(over="ignore"):
            opened = Swiglu.activation(product(x, gate, ids).astype(np.float64))
            inner = (opened * product(x, up, ids)).astype(np.float32)
        each = (product(inner, down, ids) * weights[..., None]).astype(np.float32)
        return each.astype(np.float64).sum(axis=1).astype(np.float32)

    def expand(
        self,
        graph: Graph,
        x: Value,
        weights: Value,
        ids: Value,
        gate: Value,
        up: Value,
        down: Value,
    ) -> Value:
        inner = graph.swiglu(graph.mul_mat_id(x, gate, ids), graph.mul_mat_id(x, up, ids))
        each = graph.mul_mat_id(inner, down, ids)
        each = graph.mul(each, graph.reshape(weights, shape=(*weights.shape, 1)))
        return graph.sum(each, axis=1, keepdims=False)

    def cost(
        self,
        x: TensorSpec,
        weights: TensorSpec,
        ids: TensorSpec,
        gate: TensorSpec,
        up: TensorSpec,
        down: TensorSpec,
    ) -> Cost:
        """Bytes of as many experts as the rows can choose."""
        experts, f, k = gate.shape
        used = min(experts, ids.size)
        read = x.nbytes + weights.nbytes + ids.nbytes
        read += sum(w.nbytes // experts * used for w in (gate, up, down))
        flops = ids.size * (2 * f * (2 * k + down.shape[1]) + 5 * f + 2 * down.shape[1])
        return Cost(flops, read, 4 * ids.shape[0] * down.shape[1])

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """A sum over the chosen experts of what only it reads."""
        weighted = maker(node.inputs[0], "mul")
        if node.op.attributes() != {"axis": 1, "keepdims": False} or weighted is None:
            return
        for each, factor in (weighted.inputs, weighted.inputs[::-1]):
            down, spread = maker(each, "mul_mat_id"), maker(factor, "reshape")
            glu = maker(down.inputs[0], "swiglu") if down else None
            if down is None or spread is None or glu is None:
                continue
            gate, up = (maker(value, "mul_mat_id") for value in glu.inputs)
            if gate is None or up is None:
                continue
            x, weights, ids = gate.inputs[0], spread.inputs[0], down.inputs[2]
            alike = up.inputs[0] == x and gate.inputs[2] == ids and up.inputs[2] == ids
            if not alike or x is None or weights is None or ids is None or x.spec.rank != 2:
                continue
            if weights.shape != ids.shape or spread.specs[0].shape != (*ids.shape, 1):
                continue
            inner = [gate, up, glu, down, spread, weighted]
            if all(
                uses.only(part.value(), reader.op.name) for part, reader in _readers(inner, node)
            ):
                weights_of = (part.inputs[1] for part in (gate, up, down))
                op = make_op(cls.name, {})
                yield Fusion(
                    op, (x, weights, ids, *weights_of), (*inner, node), {node.value(): (0, 0)}
                )

    @staticmethod
    def cases() -> Iterable[Case]:
        mixes = (("q4_k", "q6_k"), ("q8_0", "q8_0"), ("q4_k", "q4_k"), ("q5_k", "q5_k"))
        for i, of in enumerate(mixes):
            for j, (n, u) in enumerate(((1, 2), (1, 8), (2, 3), (7, 4), (40, 4))):
                f = 256 if (i + j) % 2 else 512
                yield _case(of, n, u, (8, 12, 40)[(i + j) % 3], (33, 64)[j % 2], 512, f)
        yield _case(("f32", "f32"), 3, 2, 4, 17, 33, 20)
        yield _case(("q8_0", "f16"), 3, 2, 4, 17, 64, 32)
        yield _case(("q8_0", "q8_0"), 1, 17, 24, 20, 64, 96)
        yield _case(("q4_k", "q6_k"), 3, 2, 4, 33, 256, 256, gap=32)
        ids = fixed([[1, -1], [-1, -1], [3, 3]], "i32")
        yield _of("padding", ("q8_0", "q8_0"), ids, f32(3, 64), 3, 2, 4, 17, 64)
        yield _of(
            "padding,n=1", ("q8_0", "q8_0"), fixed([[-1, 2]], "i32"), f32(1, 64), 1, 2, 4, 17, 64
        )
        yield _case(("q8_0", "q8_0"), 0, 2, 4, 17, 64, 64)
        for n in (1, 8, 32, 512):
            yield _case(("q4_k", "q6_k"), n, 8, 128, 2048, 2048, 768, tags=("perf",))


def _readers(inner: list[Node], last: Node) -> list[tuple[Node, Node]]:
    """Each node with the one that alone reads it."""
    gate, up, glu, down, spread, weighted = inner
    pairs = [(gate, glu), (up, glu), (glu, down), (down, weighted), (spread, weighted)]
    return [*pairs, (weighted, last)]


def _case(
    of: tuple[str, str],
    n: int,
    u: int,
    e: int,
    m: int,
    k: int,
    f: int,
    gap: int = 0,
    tags: tuple[str, ...] = (),
) -> Case:
    """of: the type of gate and up, and that of down."""
    label = f"{of[0]}+{of[1]},n={n},u={u},e={e},m={m},k={k},f={f}" + (f",gap={gap}" if gap else "")
    ids = fixed((np.arange(n)[:, None] * 5 + np.arange(u) * 3) % e, "i32")
    return _of(label, of, ids, f32(n, k, gap=gap), n, u, e, m, f, tags)


def _of(
    label: str,
    of: tuple[str, str],
    ids: Fixed,
    x: Rand,
    n: int,
    u: int,
    e: int,
    m: int,
    f: int,
    tags: tuple[str, ...] = (),
) -> Case:
    k = x.shape[-1]
    gate, up, down = rand(of[0], e, f, k), rand(of[0], e, f, k), rand(of[1], e, m, f)
    return Case(label, x=x, weights=f32(n, u), ids=ids, gate=gate, up=up, down=down, tags=tags)
