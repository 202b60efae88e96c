"""Copies: to a contiguous layout, and to another element type."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed, rand
from ..graph.codec import decode, encode
from ..graph.dtype import dtype
from ..graph.errors import BackendError, DTypeError
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec

CAST_TYPES = ("f32", "f16", "bf16", "i32")
# Their encoders round without searching, so that decoded values encode to what they came from.
BLOCK_TYPES = ("q8_0", "q5_0", "q4_0")
_I32 = np.iinfo(np.int32)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """f32 values rounded to bf16, to nearest, ties to even; they stay f32 arrays."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return np.where(np.isnan(x), x, (rounded & np.uint32(0xFFFF0000)).view(np.float32))


def truncate_i32(x: np.ndarray) -> np.ndarray:
    """Floats as i32, cut towards zero; limited to the range of i32, and 0 for NaN."""
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
    return np.clip(whole, _I32.min, _I32.max).astype(np.int32)


@register
class Cont(Op):
    """y = x, laid out row-major without gaps

    x: [...] of any element type, with any strides; y: a copy."""

    name, inputs, outputs = "cont", ("x",), ("y",)
    rowwise = True
    tolerance = 0.0  # a copy

    def infer(self, x: TensorSpec) -> TensorSpec:
        if x.dtype.quantized:
            raise DTypeError(f"{self.name}: 'x' should be an element type, got blocks of {x.dtype}")
        return x.like()

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.copy(order="C")

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, x.nbytes, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for shape in ((4, 64), (3, 5, 7), (1, 1), (5,), (0, 64), ()):
            yield Case(x=f32(*shape))
        for of in ("f16", "bf16", "i32"):
            yield Case(x=rand(of, 3, 40, lo=-9, hi=9))
        yield Case("gap,n=3,d=40", x=f32(3, 40, gap=24))
        yield Case("gap,n=2x3,d=5", x=f32(2, 3, 5, gap=1))
        yield Case("special", x=fixed([[np.inf, -np.inf, -0.0, 3e38, 1e-38]]))
        yield Case("perf,gap", x=f32(512, 1024, gap=1024), tags=("perf",))


@register
class Cast(Op):
    """y = x in the element type `to`

    x: [...] f32, f16, bf16 or i32; y: the shape of x. Floats round to nearest, ties to even, and
    become infinite beyond the target's range. i32 from floats: cut towards zero, limited to i32's
    range, 0 for NaN. i32 to f16, bf16 or blocks goes through f32.
    q8_0, q5_0 and q4_0 take rows of whole blocks; a run raises BackendError for values that are not
    finite or too large for a block's f16 scale."""

    name, inputs, outputs = "cast", ("x",), ("y",)
    rowwise = True
    tolerance = 0.0  # one rounding of each value, which has one right answer
    to: str

    def infer(self, x: TensorSpec) -> TensorSpec:
        known = CAST_TYPES + BLOCK_TYPES
        self.require_attr(self.to in known, "to", " or ".join(known))
        self.require_dtype("x", x, *CAST_TYPES)
        to = dtype(self.to)
        if to.quantized:
            whole = x.rank >= 1 and x.shape[-1] % to.block == 0
            self.require(whole, "x", f"rows of whole blocks of {to.block} for {to}", x.shape)
        return x.like(dtype=to)

    def reference(self, x: np.ndarray) -> np.ndarray:
        if self.to == "i32":
            return x.copy() if x.dtype == np.int32 else truncate_i32(x)
        wide = x.astype(np.float32)
        if self.to == "bf16":
            return round_bf16(wide)
        if self.to in BLOCK_TYPES:
            return self._blocks(wide)
        with np.errstate(over="ignore"):
            return wide.astype(np.float16 if self.to == "f16" else np.float32)

    def _blocks(self, x: np.ndarray) -> np.ndarray:
        """The values that x has as blocks."""
        to = dtype(self.to)
        try:
            return decode(to, encode(to, x), x.shape)
        except DTypeError as error:
            raise BackendError(f"{self.name}: {error}") from None

    def cost(self, x: TensorSpec) -> Cost:
        return Cost(0, x.nbytes, self.infer(x).nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for of in CAST_TYPES:
            for to in CAST_TYPES:
                yield Case(x=rand(of, 3, 33, lo=-1000, hi=1000), to=to)
        floats = {
            "limits": (0.0, -0.0, 65504.0, 65519.9, 65520.0, -7e4),
            "huge": (3.4e38, -3.4e38, 1e10),
            "ties": (1.00390625, 1.01171875, 2049.0, 2051.0),
            "small": (6e-8, 2.9e-8, -9e-8, 1e-30),
            "halves": (0.5, -0.5, 1.5, -1.5, 2.5),
            "i32 limits": (2147483520.0, 2147483648.0, -2147483648.0, -3e9),
        }
        for to in CAST_TYPES:
            for label, edge in floats.items():
                yield Case(f"{label},to={to}", x=fixed([edge]), to=to)
            whole = fixed([[0, -1, 2**24 + 1, 65520, 2**31 - 1, -(2**31)]], "i32")
            yield Case(f"whole,to={to}", x=whole, to=to)
        yield Case("special,to=f16", x=fixed([[np.inf, -np.inf]]), to="f16")
        yield Case("special,to=i32", x=fixed([[np.inf, -np.inf, np.nan]]), to="i32")
        for to in BLOCK_TYPES:
            for of in CAST_TYPES:
                yield Case(x=rand(of, 3, 96, lo=-1000, hi=1000), to=to)
            tiny = [[1e-30] * 32 + [1e-6, -2e-6] * 16 + [3e-8, -1e-7, 0.0, 0.0] * 8]
            yield Case(f"tiny,to={to}", x=fixed(tiny), to=to)
            yield Case(f"zero,to={to}", x=fixed([[0.0] * 32 + [-0.0] * 32]), to=to)
            steps = [np.arange(-127.0, 128.0, 0.5)[:480], np.linspace(-16.0, 16.0, 480)]
            yield Case(f"halves,to={to}", x=fixed(steps), to=to)
            yield Case(f"large,to={to}", x=f32(2, 64, lo=-2e5, hi=2e5), to=to)
            yield Case(f"gap,to={to}", x=f32(3, 64, gap=32), to=to)
            yield Case(x=f32(0, 64), to=to)
            yield Case(x=f32(512, 1024), to=to, tags=("perf",))
        yield Case("gap,to=f16", x=f32(3, 40, gap=24), to="f16")
        yield Case(x=f32(0, 64), to="f16")
        yield Case(x=f32(1), to="bf16")
        yield Case(x=f32(512, 1024), to="f16", tags=("perf",))
