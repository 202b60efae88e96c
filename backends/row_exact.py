"""Checks that a row of a step has the same bits alone and among others, with any threads."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import HostTensor, Op, TensorSpec
from ..graph.case import BoundCase, Rand
from ..graph.errors import BackendError, GraphError
from ..graph.spec import contiguous_strides
from .base import Backend
from .harness import Built, CaseResult, Trial, build

SIZES = (*range(1, 18), 33, 65, 260)
_PROBES = 4
_SEQUENCES = 8


@dataclass(frozen=True)
class GivenCase(BoundCase):
    """A case whose inputs are given, in `tensors`; gaps are those declared in `inputs`."""

    tensors: tuple[HostTensor | None, ...] = ()

    def draw(self) -> list[HostTensor | None]:
        """The given inputs."""
        return list(self.tensors)

    def strides(self, index: int) -> tuple[int, ...] | None:
        """The declared gap on the given shape."""
        tensor, declared = self.tensors[index], self.inputs[index]
        gap = declared.gap if isinstance(declared, Rand) else 0
        if tensor is None or not gap or tensor.spec.rank < 2:
            return None
        wide = (*tensor.spec.shape[:-1], tensor.spec.shape[-1] + gap)
        return contiguous_strides(wide, tensor.spec.dtype)

    @property
    def ragged(self) -> bool:
        """Whether the op takes the tokens of several sequences."""
        return "seq_offsets" in self.op.inputs


def check_rows(
    backends: Sequence[Backend], case: BoundCase, sizes: Sequence[int] = SIZES
) -> CaseResult:
    """Whether rows of a case keep their bits among others; one backend per thread count.

    A row-wise op is given some of the case's rows alone, and then among as many rows as sizes say,
    of which the others are drawn anew. Of an op over ragged batches each sequence runs alone and as
    the case has it; the first one also among others and token by token. Rows that enter a state run
    one by one, and behind others that go to the same places. Refused: what the backend does not
    take, what is not registered as row-exact, cases without rows, and ops of which the rows say
    nothing. An op that does not declare which operands have rows fails."""
    why = undeclared(case.op)
    try:
        if not why:
            given = _given(case)
            if exempt := _exempt(backends[0], given):
                return CaseResult(case.id, "refused", exempt)
            pairs = _pairs(backends, given, sizes)
            why = next((w for w in pairs if w), "")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return CaseResult(case.id, "failed" if why else "passed", why)


def undeclared(op: Op) -> str:
    """What an op should declare about rows and does not, "" for nothing."""
    if op.no_rows or op.view or op.rowwise:
        said = [name for name in ("no_rows", "view", "rowwise", "per_token") if getattr(op, name)]
        return f"declares both {' and '.join(said)}; one of them holds" if len(said) > 1 else ""
    known = {*op.input_names(), *op.output_names()}
    for attr in ("per_token", "per_sequence", "by_place"):
        for name in getattr(op, attr):
            if name not in known:
                return f"{attr} names {name!r}, which is no input or output of {op.name}"
    ragged = "seq_offsets" in op.inputs
    if not op.per_token:
        kind = "takes seq_offsets" if ragged else "is not row-wise"
        return f"{op.name} {kind} and declares neither per_token nor, with the reason, no_rows"
    if ragged and op.writes and "state_rows" not in op.per_sequence:
        return f"{op.name} writes a state; its rows are found by an input state_rows per sequence"
    return "" if ragged or op.writes else f"{op.name} has rows without a state: declare rowwise"


def _given(case: BoundCase) -> GivenCase:
    return GivenCase(case.id, case.op, case.inputs, case.tags, tuple(case.draw()))


def _exempt(backend: Backend, case: GivenCase) -> str:
    """Why a case says nothing about rows on a backend, "" if it does."""
    if case.op.view or case.op.no_rows:
        return case.op.no_rows or "a view: nothing runs"
    if not (_busy(case) if case.ragged else _along(case) and _count(case)):
        return "no rows"
    kernels = [k for k in backend.kernels if k["op"] == case.op.name]
    if kernels and not any(k["row_exact"] for k in kernels):
        return f"not registered as row-exact: {kernels[0]['bound'] or 'no bound given'}"
    support = backend.supports(build(case).node)
    return "" if support.ok else support.why


def _pairs(backends: Sequence[Backend], case: GivenCase, sizes: Sequence[int]) -> Iterator[str]:
    """What is wrong with each pair of runs that should agree; empty texts for nothing."""
    if case.op.rowwise:
        yield from _rowwise(backends, case, sizes)
    elif case.ragged:
        yield from _as_given(backends, case)
        yield from _ragged(backends, case, sizes)
    else:
        yield from _entering(backends, case, sizes)


def _along(case: GivenCase) -> tuple[int, ...]:
    """The inputs that have a row for each row of the outputs, or for each token."""
    return case.op.row_inputs(*(t.spec if t is not None else None for t in case.tensors))


def _count(case: GivenCase) -> int:
    """How many such rows there are."""
    first = case.tensors[_along(case)[0]]
    return first.spec.shape[0] if first is not None else 0


def _busy(case: GivenCase) -> list[int]:
    """The sequences that have something to compare: tokens, or a state."""
    lengths = np.diff(_values(case, "seq_offsets"))
    stateful = bool(case.op.writes) and not case.op.by_place
    return [b for b, tokens in enumerate(lengths) if tokens or stateful]


def _values(case: GivenCase, name: str) -> np.ndarray:
    return _present(case, case.names.index(name)).decoded()


def _rows(tensor: HostTensor) -> np.ndarray:
    """The bytes of each row of axis 0."""
    return tensor.raw.reshape(tensor.spec.shape[0], _width(tensor.spec))


def _width(spec: TensorSpec) -> int:
    """Bytes of a row of axis 0, also where there is none."""
    return TensorSpec((1, *spec.shape[1:]), spec.dtype).nbytes


def _of_rows(like: HostTensor, rows: np.ndarray) -> HostTensor:
    spec = TensorSpec((len(rows), *like.spec.shape[1:]), like.spec.dtype)
    return HostTensor(spec, np.ascontiguousarray(rows).reshape(-1))


def _drawn(case: GivenCase, index: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """The bytes of n further rows of an input, as its declaration has them."""
    declared, tensor = case.inputs[index], _present(case, index)
    if isinstance(declared, Rand):
        more = replace(declared, shape=(n, *declared.shape[1:]), gap=0)
        return more.draw(rng).raw.reshape(n, _width(tensor.spec))
    return _rows(tensor)[rng.integers(0, tensor.spec.shape[0], n)]


def _with(case: GivenCase, changed: dict[int, np.ndarray]) -> GivenCase:
    """The case with other rows in some inputs."""
    tensors = list(case.tensors)
    for i, rows in changed.items():
        like = tensors[i]
        if like is not None:
            tensors[i] = _of_rows(like, rows)
    return replace(case, tensors=tuple(tensors))


def _run(backend: Backend, built: Built) -> list[np.ndarray]:
    """The bytes of each row of each output."""
    trial = Trial(backend, built)
    trial.bound.run()
    if fault := trial.fault():
        raise BackendError(fault)
    found = [trial.bound.outputs[label] for label in built.node.output_names()]
    return [_bytes_of_rows(_with_one_nan(a)) for a in found]


def _with_one_nan(array: np.ndarray) -> np.ndarray:
    """Every NaN with the same bits: which of its operands' a sum passes on is the compiler's choice
    of their order, and tells nothing of other rows."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), array.dtype.type(np.nan), array)


def _bytes_of_rows(array: np.ndarray) -> np.ndarray:
    width = math.prod(array.shape[1:]) * array.itemsize
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), width).copy()


def _rowwise(backends: Sequence[Backend], case: GivenCase, sizes: Sequence[int]) -> Iterator[str]:
    """What is wrong at each size; empty texts for nothing."""
    along = _along(case)
    rng = _rng(case)
    probes = min(_PROBES, _count(case))
    own = {i: _rows(t) for i in along if (t := case.tensors[i]) is not None}
    alone = [
        _run(backends[0], build(_with(case, {i: rows[p : p + 1] for i, rows in own.items()})))
        for p in range(probes)
    ]
    for n in sizes:
        which = rng.integers(-probes, probes, n)  # negative: a companion
        which[[0, -1]] = rng.integers(0, probes, 2)
        mixed = {i: _drawn(case, i, n, rng) for i in along}
        for i, rows in own.items():
            mixed[i][which >= 0] = rows[which[which >= 0]]
        built = build(_with(case, mixed))
        for backend in backends:
            labels = built.node.output_names()
            for label, rows, *single in zip(labels, _run(backend, built), *alone, strict=True):
                want = np.concatenate(single)[which[which >= 0]]
                same = (rows[which >= 0] == want).all(1)
                yield "" if same.all() else _differs(label, n, backend, which, same)


def _differs(label: str, n: int, backend: Backend, which: np.ndarray, same: np.ndarray) -> str:
    row = np.flatnonzero(which >= 0)[np.flatnonzero(~same)[0]]
    return f"{label}: row {row} of {n}{_threads(backend)} differs from the same row alone"


def _rng(case: GivenCase) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(case.id.encode()))


def _threads(backend: Backend) -> str:
    return f", threads {backend.threads}" if backend.threads else ""


def _entering(backends: Sequence[Backend], case: GivenCase, sizes: Sequence[int]) -> Iterator[str]:
    """What is wrong with rows that enter a state one by one, and behind others.

    Those others have the case's own integers, so that what they leave is overwritten."""
    rng = _rng(case)
    tokens, labels = _count(case), list(case.op.output_names())
    want = _run(backends[0], build(case))
    for n in sizes:
        which = rng.integers(0, tokens, n)
        mixed = {}
        for i in _along(case):
            own = _rows(_present(case, i))
            whole = _present(case, i).spec.dtype.name == "i32"
            others = own[which] if whole else _drawn(case, i, n, rng)
            mixed[i] = np.concatenate([others, own])
        built = build(_with(case, mixed))
        for backend in backends:
            for label, have, single in zip(labels, _run(backend, built), want, strict=True):
                last = have if _each(case, label) else have[n:]
                same = np.array_equal(last, single)
                said = (
                    f"{label}: {tokens} rows behind {n}{_threads(backend)} differ from them alone"
                )
                yield "" if same else said
    yield from _one_by_one(backends, case, tokens, want)


def _ragged(backends: Sequence[Backend], case: GivenCase, sizes: Sequence[int]) -> Iterator[str]:
    """What is wrong with one sequence in batches of each size, and token by token.

    A sequence that is longer than every size runs among as many others as the last one says."""
    offsets = _values(case, "seq_offsets")
    tokens = np.diff(offsets)
    b = next((b for b in _busy(case) if tokens[b]), _busy(case)[0])
    alone, count = _sequence(case, b), int(tokens[b])
    labels, want = _labels(case), _run(backends[0], build(alone))
    rng = _rng(case)
    for n in [n for n in sizes if n >= count] or [count + sizes[-1]]:
        place, lengths = _lengths(case, count, n)
        built = build(_among(alone, place, lengths, rng))
        at = sum(lengths[:place])
        for backend in backends:
            for label, rows, single in zip(labels, _run(backend, built), want, strict=True):
                whose = slice(place, place + 1) if _each(case, label) else slice(at, at + count)
                same = np.array_equal(rows[whose], single)
                among = f"a sequence among {n} rows{_threads(backend)}"
                yield "" if same else f"{label}: {among} differs from it alone"
    if count > 1 and alone.op.split(0, count, _numbers(alone), _shapes(alone)) is not None:
        yield from _one_by_one(backends, alone, count, want)


def _as_given(backends: Sequence[Backend], case: GivenCase) -> Iterator[str]:
    """What is wrong with each sequence of the case, beside the others that the case has."""
    offsets, labels = _values(case, "seq_offsets"), _labels(case)
    if len(offsets) < 3:
        return
    alone = {b: _run(backends[0], build(_sequence(case, b))) for b in _busy(case)}
    for backend in backends:
        together = _run(backend, build(case))
        for b, single in alone.items():
            for label, rows, want in zip(labels, together, single, strict=True):
                whose = slice(offsets[b], offsets[b + 1])
                if _each(case, label):
                    row = _values(case, "state_rows")[b] if label in case.op.writes else b
                    whose = slice(row, row + 1)
                if not np.array_equal(rows[whose], want):
                    yield f"{label}: sequence {b}{_threads(backend)} differs from it alone"


def _labels(case: GivenCase) -> tuple[str, ...]:
    return case.op.output_names(len(build(case).node.specs))


def _each(case: GivenCase, label: str) -> bool:
    """Whether an output has a row for each sequence."""
    return label in case.op.writes or label in case.op.per_sequence


def _present(case: GivenCase, index: int) -> HostTensor:
    tensor = case.tensors[index]
    if tensor is None:
        raise GraphError(f"{case.id}: input {case.names[index]!r} is absent")
    return tensor


def _places(case: GivenCase, names: Sequence[str]) -> list[int]:
    """The inputs of these names that are given."""
    pairs = enumerate(zip(case.names, case.tensors, strict=True))
    return [i for i, (name, t) in pairs if t is not None and name in names]


def _state(case: GivenCase) -> list[int]:
    return _places(case, list(case.op.writes.values()))


def _shapes(case: GivenCase) -> dict[str, tuple[int, ...]]:
    pairs = zip(case.names, case.tensors, strict=True)
    return {name: t.spec.shape for name, t in pairs if t is not None}


def _numbers(alone: GivenCase) -> dict[str, int]:
    """The numbers of a lone sequence."""
    tensors = {alone.names[i]: _present(alone, i) for i in _places(alone, alone.op.per_sequence)}
    return {
        name: int(t.decoded()[0])
        for name, t in tensors.items()
        if (t.spec.shape, t.spec.dtype.name) == ((1,), "i32")
    }


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return _indices(np.cumsum([0, *lengths]))


def _indices(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, np.int32).view(np.uint8).reshape(-1, 4)


def _sequence(case: GivenCase, b: int) -> GivenCase:
    """Sequence b alone, its state in row 0."""
    offsets, names = _values(case, "seq_offsets"), case.names
    start, stop = offsets[b], offsets[b + 1]
    changed = {i: _rows(_present(case, i))[start:stop] for i in _along(case)}
    for i in _places(case, case.op.per_sequence):
        changed[i] = _rows(_present(case, i))[b : b + 1]
    changed[names.index("seq_offsets")] = _offsets([stop - start])
    for i in _state(case):
        row = _values(case, "state_rows")[b]
        changed[i] = _rows(_present(case, i))[row : row + 1]
        changed[names.index("state_rows")] = _indices([0])
    return _with(case, changed)


def _lengths(case: GivenCase, tokens: int, n: int) -> tuple[int, list[int]]:
    """Which sequence is the probe, and the tokens of each, n in all.

    Where values follow from a token's place, others have the probe's and so are not longer."""
    rest = n - tokens
    longest = tokens if case.op.by_place else max(1, -(-rest // (_SEQUENCES - 1)))
    others = [min(longest, rest - done) for done in range(0, rest, longest)]
    place = n % (len(others) + 1)
    return place, [*others[:place], tokens, *others[place:]]


def _among(
    alone: GivenCase, place: int, lengths: Sequence[int], rng: np.random.Generator
) -> GivenCase:
    """The sequence as number `place` of a batch; its state lies in row `place` too."""
    names, n, batch = alone.names, sum(lengths), len(lengths)
    at, changed = sum(lengths[:place]), {}
    for i in _along(alone):
        own = _rows(_present(alone, i))
        if names[i] in alone.op.by_place:
            changed[i] = np.concatenate([own[:t] for t in lengths])
        else:
            changed[i] = _drawn(alone, i, n, rng)
            changed[i][at : at + len(own)] = own
    others = [alone.op.unrelated(tokens) for tokens in lengths]
    for i in _places(alone, alone.op.per_sequence):
        own = _rows(_present(alone, i))
        changed[i] = np.repeat(own, batch, axis=0)
        if names[i] in others[0]:
            changed[i] = _indices([numbers[names[i]] for numbers in others])
            changed[i][place] = own[0]
    changed[names.index("seq_offsets")] = _offsets(lengths)
    for i in _state(alone):
        changed[i] = _drawn(alone, i, batch, rng)
        changed[i][place] = _rows(_present(alone, i))[0]
        changed[names.index("state_rows")] = _indices(range(batch))
    return _with(alone, changed)


def _one_by_one(
    backends: Sequence[Backend], alone: GivenCase, tokens: int, want: Sequence[np.ndarray]
) -> Iterator[str]:
    """What is wrong with passes of one token that leave their state to the next."""
    labels = _labels(alone)
    first = build(_token(alone, 0, tokens))
    trials = [Trial(backend, first) for backend in backends]
    passes: list[list[list[np.ndarray]]] = [[] for _ in backends]
    for t in range(tokens):
        built = build(_token(alone, t, tokens)) if t else first
        for trial, found in zip(trials, passes, strict=True):
            for name, array in built.inputs.items():
                trial.bound.inputs[name][...] = array
            trial.bound.run()
            found.append([_bytes_of_rows(trial.bound.outputs[label]) for label in labels])
    for backend, found in zip(backends, passes, strict=True):
        for label, rows, whole in zip(labels, zip(*found, strict=True), want, strict=True):
            got = rows[-1] if _each(alone, label) else np.concatenate(rows)
            said = f"{label}: {tokens} tokens{_threads(backend)} differ from them one by one"
            yield "" if np.array_equal(got, whole) else said


def _token(alone: GivenCase, t: int, tokens: int) -> GivenCase:
    """Token t of a sequence, or row t of those that enter a state."""
    names = alone.names
    changed = {i: _rows(_present(alone, i))[t : t + 1] for i in _along(alone)}
    if alone.ragged:
        changed[names.index("seq_offsets")] = _offsets([1])
        numbers = alone.op.split(t, tokens, _numbers(alone), _shapes(alone))
        for name, number in (numbers or {}).items():
            changed[names.index(name)] = _indices([number])
    return _with(alone, changed)
