"""The base class of ops and their registry.

An op's file holds its meaning: attributes, shape rule, numpy reference, cost, cases. The builder
call, the reference backend, tests, benchmark and documentation rows all come from this class."""

from __future__ import annotations

import dataclasses
import importlib
import numbers
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .errors import AttributeValueError, DTypeError, GraphError, ShapeError
from .spec import TensorSpec

if TYPE_CHECKING:
    from .builder import Graph
    from .fusion import Fusion, Uses
    from .node import Node, Value

Specs = TensorSpec | tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Cost:
    """Work of one node: floating-point operations, bytes read, bytes written."""

    flops: int
    read: int
    write: int


class Op:
    """One operation. Subclasses are frozen dataclasses whose fields are the attributes.

    inputs: names; a trailing "?" marks an optional one, a leading "*" (last only) any number.
    outputs: names; a trailing "?" (last only) marks one that exists where the input is given that
    it writes.
    writes: output -> input; the output is the new version of that state, in the same memory. The
    input may also be what a node made, when nothing reads it afterwards.
    inplace: output -> input; the planner may give both the same memory when the input dies there.
    constants: inputs that are weights in practice; backends may repack them.
    looked_up: those of which a run reads single rows, so that repacking them for it does not pay.
    view: the output is the input's memory under another shape; `view_offset` tells where.
    tolerance: the largest NMSE of an output against the reference, with the reason beside it; None
    for the default of backends/tolerance.py. block_tolerance: where an input is of a block type.
    recurrent: it keeps a state from token to token and has the replay form of ops/replay.py.
    fuses: of a fused op, names of the ops at whose nodes `fusions` looks for what it may replace.

    Every op but a view says which rows of a pass belong together; `test-ops --rows` checks it:

    rowwise: row i of axis 0 of every output depends on row i of the inputs of that extent only.
    broadcasts: inputs that broadcast to the first by numpy's rules, so that their axis 0 is its
    axis 0 only where they have its rank.
    per_token: the inputs with a row for each token, [N, ...], of an op that takes seq_offsets or
    writes rows to a state. Outputs that are no states have such rows, too.
    per_sequence: inputs and outputs with a row for each sequence, [B, ...], beside seq_offsets. The
    rows of states are those that an input state_rows, one of these, gives.
    by_place: inputs per token whose values follow from a token's place in its sequence.
    no_rows: why rows of a pass say nothing about the op."""

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    writes: ClassVar[dict[str, str]] = {}
    inplace: ClassVar[dict[str, str]] = {}
    constants: ClassVar[tuple[str, ...]] = ()
    looked_up: ClassVar[tuple[str, ...]] = ()
    view: ClassVar[bool] = False
    tolerance: ClassVar[float | None] = None
    block_tolerance: ClassVar[float | None] = None
    recurrent: ClassVar[bool] = False
    fuses: ClassVar[tuple[str, ...]] = ()
    rowwise: ClassVar[bool] = False
    broadcasts: ClassVar[tuple[str, ...]] = ()
    per_token: ClassVar[tuple[str, ...]] = ()
    per_sequence: ClassVar[tuple[str, ...]] = ()
    by_place: ClassVar[tuple[str, ...]] = ()
    no_rows: ClassVar[str] = ""

    def infer(self, *inputs: Any) -> Specs:
        """Output specs from input specs (None for an absent optional); validates everything."""
        raise TypeError(f"op {self.name!r} has no shape rule")

    def reference(self, *inputs: Any) -> Any:
        """The op's meaning in numpy. Block-quantised and bf16 inputs arrive decoded to f32."""
        raise TypeError(f"op {self.name!r} has no reference")

    def cost(self, *inputs: Any) -> Cost:
        """Work of one node; by default one operation an output element."""
        outs = self.infer(*inputs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        read = sum(s.nbytes for s in inputs if s is not None)
        return Cost(sum(s.size for s in outs), read, sum(s.nbytes for s in outs))

    def expand(self, graph: Graph, *inputs: Any) -> Value | tuple[Value, ...] | None:
        """The op's outputs built in graph from more primitive ops, None where there are none.

        An op with an expansion is a fused one: backends without a kernel for it run the expansion
        instead, which gives the same results within the op's tolerance. `inputs` are values of
        graph, None for absent optional ones; constants with their data are the only leaves that an
        expansion may add. The outputs' specs are those that `infer` gives."""
        return None

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """Where this op may stand for a node, one of those in `fuses`, and nodes around it.

        Each by itself, those that cover more first being no duty: passes/fuse.py takes the largest
        that the backend has a kernel for. It checks that values which others read are among the
        results and that an order is left; the rest is this method's: what it finds computes the
        same."""
        return ()

    def view_offset(self, x: TensorSpec) -> int:
        """Bytes from the start of x to the start of the output, for view ops."""
        return 0

    def row_inputs(self, *inputs: TensorSpec | None) -> tuple[int, ...]:
        """Places of the inputs that have a row for each row of the outputs, given all input specs.

        Those named in per_token; of a row-wise op all with the extent of the outputs along axis 0,
        constants aside, and none where the first input has one axis only: that is a single row."""
        names, first = self.input_names(len(inputs)), inputs[0]
        given = [(i, names[i], spec) for i, spec in enumerate(inputs) if spec is not None]
        if not self.rowwise:
            return tuple(i for i, name, _ in given if name in self.per_token)
        if first is None or first.rank < 2:
            return ()
        outs = self.infer(*inputs)
        extent = (outs[0] if isinstance(outs, tuple) else outs).shape[:1]
        return tuple(
            i
            for i, name, spec in given
            if spec.shape[:1] == extent
            and name not in self.constants
            and (name not in self.broadcasts or spec.rank == first.rank)
        )

    def split(
        self,
        t: int,
        tokens: int,
        numbers: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        /,
    ) -> Mapping[str, int] | None:
        """What the pass of token t alone takes for the numbers of its sequence, so that passes of
        tokens 0, 1, .. tokens - 1 one by one leave what one pass of all leaves.

        numbers: those of the one pass, by name: the inputs per sequence with one i32 each, of which
        the result holds the ones that change; shapes: of the inputs that are given. None for an op
        that needs all tokens of a sequence in one pass."""
        return {}

    def unrelated(self, tokens: int) -> Mapping[str, int]:
        """The numbers per sequence that a sequence of that many tokens has, in a batch whose other
        sequences may have any; others are valid for all sequences alike."""
        return {}

    @staticmethod
    def cases() -> Iterable[Any]:
        """Small, odd, edge and perf cases (graph.case.Case)."""
        return ()

    @classmethod
    def output_names(cls, count: int | None = None) -> tuple[str, ...]:
        """Names of the first `count` outputs, of all by default: what a node with `count` has."""
        return tuple(name.rstrip("?") for name in cls.outputs[:count])

    @classmethod
    def input_names(cls, count: int | None = None) -> list[str]:
        """The name of each of `count` inputs, of all by default; several where one is variadic."""
        names = _input_names(cls)  # type: ignore[arg-type]
        last = len(names) - 1
        return list(names) if count is None else [names[min(i, last)] for i in range(count)]

    @classmethod
    def written_places(cls) -> tuple[tuple[int, int], ...]:
        """`writes` by number: (output, input)."""
        return _written_places(cls)  # type: ignore[arg-type]

    def attributes(self) -> dict[str, Any]:
        """Attribute values by name, in declaration order."""
        return {name: getattr(self, name) for name in fields_of(type(self))}  # type: ignore[arg-type]

    def require_inputs(self, inputs: Sequence[object | None]) -> None:
        """Raise GraphError unless there are as many inputs as declared, and none missing."""
        variadic = bool(self.inputs) and self.inputs[-1].startswith("*")
        if not variadic and len(inputs) != len(self.inputs):
            takes = ", ".join(self.inputs) or "nothing"
            raise GraphError(f"{self.name}: takes {takes}; got {len(inputs)} inputs")
        for place, value in enumerate(inputs):
            if value is None and (variadic or not self.inputs[place].endswith("?")):
                raise GraphError(f"{self.name}: input {place} is missing; it takes {self.inputs}")

    def fail(self, arg: str, want: object, got: object, remedy: str = "") -> ShapeError:
        """A ShapeError in the house form; the caller raises it."""
        tail = f"; {remedy}" if remedy else ""
        return ShapeError(f"{self.name}: '{arg}' should be {want}, got {got}{tail}")

    def require(self, ok: bool, arg: str, want: object, got: object, remedy: str = "") -> None:
        """Raise the ShapeError of `fail` unless ok."""
        if not ok:
            raise self.fail(arg, want, got, remedy)

    def require_dtype(self, arg: str, spec: TensorSpec, *names: str) -> None:
        """Raise DTypeError unless spec's dtype is one of names."""
        if spec.dtype.name not in names:
            raise DTypeError(
                f"{self.name}: '{arg}' should be {' or '.join(names)}, got {spec.dtype.name}"
            )

    def require_attr(self, ok: bool, attr: str, want: object) -> None:
        """Raise AttributeValueError unless ok."""
        if not ok:
            raise AttributeValueError(
                f"{self.name}: attribute '{attr}' should be {want}, got {getattr(self, attr)!r}"
            )


OPS: dict[str, type[Op]] = {}
T = TypeVar("T", bound=type[Op])
_ATTRIBUTE_TYPES = {t.__name__: t for t in (bool, int, float, str)}


def register(cls: T) -> T:
    """Class decorator: make cls a frozen dataclass and add it to the registry.

    Raises GraphError when the name is taken."""
    made = dataclass(frozen=True, kw_only=True, repr=True, eq=False)(cls)
    made.__eq__, made.__hash__ = _same, _kept_hash  # type: ignore[assignment]
    taken = OPS.get(cls.name)
    if taken is not None and (taken.__module__, taken.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise GraphError(
            f"op {cls.name!r} is defined twice: in {taken.__module__} and in {cls.__module__}"
        )
    OPS[cls.name] = made
    return made  # type: ignore[return-value]


@cache
def fields_of(cls: type[Op]) -> Mapping[str, dataclasses.Field[Any]]:
    """The fields of an op's class by name: its attributes."""
    return {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


@cache
def _input_names(cls: type[Op]) -> tuple[str, ...]:
    return tuple(name.strip("?*") for name in cls.inputs)


@cache
def _written_places(cls: type[Op]) -> tuple[tuple[int, int], ...]:
    names, outputs = cls.input_names(), cls.output_names()
    return tuple((outputs.index(out), names.index(of)) for out, of in cls.writes.items())


def _exact(attributes: dict[str, Any]) -> tuple[object, ...]:
    """What attributes are compared by: as they are written, and by their types. 0.0 equals -0.0,
    and 1 equals True, but kernels tell them apart."""
    return (repr(attributes), *map(type, attributes.values()))


def _same(op: Op, other: object) -> bool:
    if op is other or type(op) is not type(other):
        return op is other
    return _kept(op) == _kept(other)


def _kept_hash(op: Op) -> int:
    return hash(_kept(op))


def _kept(op: Op) -> tuple[object, ...]:
    kept: tuple[object, ...] | None = op.__dict__.get("_kept")
    if kept is None:
        kept = op.__dict__["_kept"] = _exact(op.attributes())
    return kept


def inferred(op: Op, inputs: tuple[TensorSpec | None, ...]) -> tuple[TensorSpec, ...]:
    """What `infer` gives, as a tuple. A model's layers, and the sizes that it is compiled for, ask
    for the same again and again, so that answers are kept."""
    if not inputs:
        return _as_tuple(op.infer())
    try:
        return _inferred(op, inputs)
    except TypeError:  # `infer` itself, which says so again
        return _as_tuple(op.infer(*inputs))


@lru_cache(maxsize=4096)
def _inferred(op: Op, inputs: tuple[TensorSpec | None, ...]) -> tuple[TensorSpec, ...]:
    return _as_tuple(op.infer(*inputs))


def _as_tuple(specs: Specs) -> tuple[TensorSpec, ...]:
    return specs if isinstance(specs, tuple) else (specs,)


def _typed(op: str, key: str, kind: str, value: Any) -> Any:
    """An attribute's value as its declared type; numpy's numbers become Python's."""
    if type(value) is _ATTRIBUTE_TYPES.get(kind):
        return value
    base, _, inner = kind.partition("[")
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        value = int(value)
    if base == "float" and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if base == "tuple" and isinstance(value, (list, tuple)):
        value = tuple(int(v) if isinstance(v, numbers.Integral) else v for v in value)
        if all(isinstance(v, int) for v in value) or not inner.startswith("int"):
            return value
    elif type(value) is _ATTRIBUTE_TYPES.get(base):
        return value
    raise AttributeValueError(f"{op}: attribute {key!r} should be {kind}, got {value!r}")


_MADE: dict[tuple[object, ...], Op] = {}
_MOST_MADE = 4096


def make_op(name: str, attributes: dict[str, Any]) -> Op:
    """An op instance by name; raises GraphError or AttributeValueError with what is known."""
    cls = OPS.get(name)
    if cls is None:
        raise GraphError(f"no op is called {name!r}; known: {', '.join(sorted(OPS))}")
    # A model's layers, and the sizes that it is compiled for, ask for the same again and again.
    key = (cls, *_exact(attributes))
    made = _MADE.get(key)
    if made is None:
        made = _new_op(cls, attributes)
        if len(_MADE) >= _MOST_MADE:
            _MADE.clear()
        _MADE[key] = made
    return made


def _new_op(cls: type[Op], attributes: dict[str, Any]) -> Op:
    name = cls.name
    fields = fields_of(cls)  # type: ignore[arg-type]
    unknown = sorted(attributes.keys() - fields.keys())
    if unknown:
        raise AttributeValueError(
            f"{name}: unknown attribute {unknown[0]!r}; it has: {', '.join(fields) or 'none'}"
        )
    for f in fields.values():
        if f.name not in attributes and f.default is dataclasses.MISSING:
            raise AttributeValueError(f"{name}: attribute {f.name!r} must be given ({f.type})")
    values = {k: _typed(name, k, str(fields[k].type), v) for k, v in attributes.items()}
    return cls(**values)


def scan(package: str, path: Iterable[str]) -> None:
    """Import every module of a package in sorted order: what they define registers itself."""
    for info in sorted(pkgutil.iter_modules(path), key=lambda m: m.name):
        importlib.import_module(f"{package}.{info.name}")
