"""Row lookup: token embeddings, and the rows of a pass whose logits are wanted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, ints, rand
from ..graph.dtype import dtype
from ..graph.errors import DTypeError
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import check_range, require_contiguous

_BLOCKS_OF_32 = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
_BLOCKS_OF_256 = (
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"),
    *("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"),
)
_TABLE_TYPES = ("f32", "f16", "bf16", *_BLOCKS_OF_32, *_BLOCKS_OF_256)


@register
class GetRows(Op):
    """y[i] = table[ids[i]]

    table: [R, D] of any float or block type, contiguous; ids: [N] i32; y: [N, D] f32.
    Raises BackendError in a run when an id is outside [0, R)."""

    name, inputs, outputs = "get_rows", ("table", "ids"), ("y",)
    constants = looked_up = ("table",)
    rowwise = True
    tolerance = 0.0  # a copy, or blocks decoded as their codec does

    def infer(self, table: TensorSpec, ids: TensorSpec) -> TensorSpec:
        self.require(table.rank == 2, "table", "rank 2, [rows, width]", table.shape)
        if table.dtype.numpy is not None and table.dtype.numpy.kind != "f":
            raise DTypeError(
                f"{self.name}: 'table' should be a float or block type, got {table.dtype}"
            )
        require_contiguous(self, "table", table)
        self.require(ids.rank == 1, "ids", "rank 1, [N]", ids.shape)
        self.require_dtype("ids", ids, "i32")
        return TensorSpec((ids.shape[0], table.shape[1]))

    def reference(self, table: np.ndarray, ids: np.ndarray) -> np.ndarray:
        check_range(self, "ids", ids, 0, len(table))
        return table[ids].astype(np.float32)

    def cost(self, table: TensorSpec, ids: TensorSpec) -> Cost:
        rows, width = ids.size, table.shape[1]
        return Cost(0, rows * table.dtype.row_bytes(width) + ids.nbytes, 4 * rows * width)

    @staticmethod
    def cases() -> Iterable[Case]:
        for of in _TABLE_TYPES:
            wide = max(2 * dtype(of).block, 96)
            for ids in ((3,), (0, 10, 5, 5, 1)):
                label = f"{of},r=11,d={wide},n={len(ids)}"
                yield Case(label, table=rand(of, 11, wide), ids=ints(*ids))
        yield Case("r=1,d=1", table=f32(1, 1), ids=ints(0))
        yield Case("odd,r=5,d=33", table=f32(5, 33), ids=ints(4, 0, 4))
        yield Case("repeated,n=17", table=rand("f16", 3, 40), ids=ints(*(17 * [2])))
        yield Case("empty,n=0", table=rand("f16", 3, 40), ids=ints())
        many = ints(*(i * 37 % 4096 for i in range(512)))
        for of in ("f16", "q8_0", "q6_k"):
            yield Case(f"{of},n=1", table=rand(of, 4096, 1024), ids=ints(4095), tags=("perf",))
            yield Case(f"{of},n=512", table=rand(of, 4096, 1024), ids=many, tags=("perf",))
