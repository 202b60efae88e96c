"""Checks that a row of a step has the same bits alone and among others, with any threads."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import HostTensor, TensorSpec
from ..graph.case import BoundCase, Rand
from ..graph.errors import BackendError, GraphError
from ..graph.spec import contiguous_strides
from .base import Backend
from .harness import Built, CaseResult, Trial, build

SIZES = (*range(1, 18), 33, 65, 260)
_PROBES = 4
_SEQUENCES = 8
# Inputs of ops over ragged batches that have a row for each token. Those with one for each
# sequence have the same names everywhere; all else belongs to all sequences.
_PER_TOKEN = {
    "attention": ("q", "positions"),
    "ssm_conv": ("x",),
    "gated_delta_net": ("q", "k", "v", "g", "beta"),
}
_REPLAY = ("log_head", "n_replay", "n_held", "n_direct")
_PER_SEQUENCE = ("block_table", "state_rows", "start", "head", *_REPLAY)


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
    def names(self) -> list[str]:
        """The name of each input."""
        return input_names(self)


def input_names(case: BoundCase) -> list[str]:
    """The name of each input of a case; a variadic one gives its name to several."""
    names = [n.strip("?*") for n in case.op.inputs]
    return [names[min(i, len(names) - 1)] for i in range(len(case.inputs))]


def check_rows(
    backends: Sequence[Backend], case: BoundCase, sizes: Sequence[int] = SIZES
) -> CaseResult:
    """Whether rows of a case keep their bits among companions; one backend per thread count.

    A row-wise op is given some of the case's rows alone, and then among 2 to 260 rows of which the
    others are drawn anew. Of an op over ragged batches one sequence runs alone, among others, and
    token by token. Refused: what the backend does not take, what is not registered as row-exact,
    and cases without rows."""
    try:
        given = _given(case)
        why = _exempt(backends[0], given)
        if why:
            return CaseResult(case.id, "refused", why)
        ragged = "seq_offsets" in case.op.inputs
        pairs = _ragged(backends, given, sizes) if ragged else _rowwise(backends, given, sizes)
        why = next((w for w in pairs if w), "")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return CaseResult(case.id, "failed" if why else "passed", why)


def _given(case: BoundCase) -> GivenCase:
    return GivenCase(case.id, case.op, case.inputs, case.tags, tuple(case.draw()))


def _exempt(backend: Backend, case: GivenCase) -> str:
    """Why a case says nothing about rows on a backend, "" if it does."""
    if "seq_offsets" in case.op.inputs:
        if case.op.name not in _PER_TOKEN:
            return "not known which inputs have a row per token"
        offsets = _values(case, "seq_offsets")
        if offsets[-1] == 0:
            return "no rows"
    elif not case.op.rowwise:
        return "not a row-wise op"
    elif not _row_inputs(case):
        return "no rows"
    kernels = [k for k in backend.kernels if k["op"] == case.op.name]
    if kernels and not any(k["row_exact"] for k in kernels):
        return f"not registered as row-exact: {kernels[0]['bound'] or 'no bound given'}"
    support = backend.supports(build(case).node)
    return "" if support.ok else support.why


def _values(case: GivenCase, name: str) -> np.ndarray:
    tensor = case.tensors[case.names.index(name)]
    if tensor is None:
        raise GraphError(f"{case.id}: input {name!r} is absent")
    return tensor.decoded()


def _row_inputs(case: GivenCase) -> list[int]:
    """The inputs that axis 0 of the outputs runs along. A lone row of rank 1 is all features."""
    first, rows = case.tensors[0], build(case).node.specs[0].shape[:1]
    if first is None or first.spec.rank < 2 or rows in ((), (0,)):
        return []
    return [
        i
        for i, (name, t) in enumerate(zip(case.names, case.tensors, strict=True))
        if t is not None and t.spec.shape[:1] == rows and name not in case.op.constants
    ]


def _rows(tensor: HostTensor) -> np.ndarray:
    """The bytes of each row of axis 0."""
    return tensor.raw.reshape(tensor.spec.shape[0], -1)


def _of_rows(like: HostTensor, rows: np.ndarray) -> HostTensor:
    spec = TensorSpec((len(rows), *like.spec.shape[1:]), like.spec.dtype)
    return HostTensor(spec, np.ascontiguousarray(rows).reshape(-1))


def _drawn(case: GivenCase, index: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """The bytes of n further rows of an input, as its declaration has them."""
    declared, tensor = case.inputs[index], case.tensors[index]
    if tensor is None:
        raise GraphError(f"{case.id}: input {index} is absent")
    if isinstance(declared, Rand):
        more = replace(declared, shape=(n, *declared.shape[1:]), gap=0)
        return more.draw(rng).raw.reshape(n, _rows(tensor).shape[1])
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
    return [_bytes_of_rows(a) for a in found]


def _bytes_of_rows(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8).copy()


def _rowwise(backends: Sequence[Backend], case: GivenCase, sizes: Sequence[int]) -> Iterator[str]:
    """What is wrong at each size; empty texts for nothing."""
    along = _row_inputs(case)
    rng = np.random.default_rng(zlib.crc32(case.id.encode()))
    first = case.tensors[along[0]]
    probes = min(_PROBES, first.spec.shape[0] if first else 0)
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
    threads = f", threads {backend.threads}" if backend.threads else ""
    return f"{label}: row {row} of {n}{threads} differs from the same row alone"


def _ragged(backends: Sequence[Backend], case: GivenCase, sizes: Sequence[int]) -> Iterator[str]:
    """What is wrong with one sequence at each size, and token by token."""
    alone = _sequence(case)
    tokens = len(_rows_of(alone, _PER_TOKEN[case.op.name][0]))
    want = _run(backends[0], build(alone))
    rng = np.random.default_rng(zlib.crc32(case.id.encode()))
    for n in sizes:
        if n < tokens:
            continue
        place, lengths = _lengths(case, tokens, n)
        built = build(_among(alone, place, lengths, rng))
        at = sum(lengths[:place])
        for backend in backends:
            got = _run(backend, built)
            parts = [got[0][at : at + tokens], *(a[place : place + 1] for a in got[1:])]
            labels = case.op.output_names(len(want))
            for label, have, single in zip(labels, parts, want, strict=True):
                if not np.array_equal(have, single):
                    threads = f", threads {backend.threads}" if backend.threads else ""
                    yield f"{label}: a sequence among {n} rows{threads} differs from it alone"
    if getattr(case.op, "mask", "causal") == "causal" and tokens > 1:
        for backend in backends:
            got = _token_by_token(backend, alone, tokens)
            labels = case.op.output_names(len(want))
            for label, have, single in zip(labels, got, want, strict=True):
                same = np.array_equal(have, single)
                yield "" if same else f"{label}: {tokens} tokens differ from them one by one"


def _rows_of(case: GivenCase, name: str) -> np.ndarray:
    tensor = case.tensors[case.names.index(name)]
    if tensor is None:
        raise GraphError(f"{case.id}: input {name!r} is absent")
    return _rows(tensor)


def _present(case: GivenCase, names: Sequence[str]) -> list[int]:
    pairs = enumerate(zip(case.names, case.tensors, strict=True))
    return [i for i, (name, t) in pairs if t is not None and name in names]


def _state(case: GivenCase) -> list[int]:
    return _present(case, list(case.op.writes.values()))


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32).view(np.uint8).reshape(-1, 4)


def _indices(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, np.int32).view(np.uint8).reshape(-1, 4)


def _sequence(case: GivenCase) -> GivenCase:
    """The first sequence that has tokens, alone, its state in row 0."""
    offsets = _values(case, "seq_offsets")
    b = int(np.flatnonzero(np.diff(offsets))[0])
    start, stop = offsets[b], offsets[b + 1]
    names = case.names
    tokens = _present(case, _PER_TOKEN[case.op.name])
    changed = {i: _rows_of(case, names[i])[start:stop] for i in tokens}
    changed |= {i: _rows_of(case, names[i])[b : b + 1] for i in _present(case, _PER_SEQUENCE)}
    changed[names.index("seq_offsets")] = _offsets([stop - start])
    for i in _state(case):
        row = _values(case, "state_rows")[b]
        changed[i] = _rows_of(case, names[i])[row : row + 1]
        changed[names.index("state_rows")] = _indices([0])
    return _with(case, changed)


def _lengths(case: GivenCase, tokens: int, n: int) -> tuple[int, list[int]]:
    """Which sequence is the probe, and the tokens of each, n in all.

    Companions in attention are no longer than the probe, whose positions they share."""
    rest = n - tokens
    longest = tokens if case.op.name == "attention" else max(1, -(-rest // (_SEQUENCES - 1)))
    others = [min(longest, rest - done) for done in range(0, rest, longest)]
    place = n % (len(others) + 1)
    return place, [*others[:place], tokens, *others[place:]]


def _among(
    alone: GivenCase, place: int, lengths: Sequence[int], rng: np.random.Generator
) -> GivenCase:
    """The sequence as number `place` of a batch; its state lies in row `place` too."""
    names, n, batch = alone.names, sum(lengths), len(lengths)
    at, changed = sum(lengths[:place]), {}
    for i in _present(alone, _PER_TOKEN[alone.op.name]):
        own = _rows_of(alone, names[i])
        if names[i] == "positions":
            changed[i] = np.concatenate([own[:t] for t in lengths])
        else:
            changed[i] = _drawn(alone, i, n, rng)
            changed[i][at : at + len(own)] = own
    for i in _present(alone, _PER_SEQUENCE):
        own = _rows_of(alone, names[i])
        changed[i] = np.repeat(own, batch, axis=0)
        # Companions may be longer than the log: they run directly, which allows for no held entry.
        if names[i] in ("n_direct", "n_held"):
            changed[i] = _indices(lengths if names[i] == "n_direct" else [0] * batch)
            changed[i][place] = own[0]
    changed[names.index("seq_offsets")] = _offsets(lengths)
    for i in _state(alone):
        changed[i] = _drawn(alone, i, batch, rng)
        changed[i][place] = _rows_of(alone, names[i])[0]
        changed[names.index("state_rows")] = _indices(range(batch))
    return _with(alone, changed)


def _token_by_token(backend: Backend, alone: GivenCase, tokens: int) -> list[np.ndarray]:
    """The sequence in passes of one token that leave their state to the next."""
    trial: Trial | None = None
    rows: list[np.ndarray] = []
    for t in range(tokens):
        built = build(_token(alone, t, tokens))
        trial = trial or Trial(backend, built)
        for name, array in built.inputs.items():
            trial.bound.inputs[name][...] = array
        trial.bound.run()
        rows.append(_bytes_of_rows(trial.bound.outputs[alone.op.outputs[0]]))
    if trial is None:
        raise GraphError(f"{alone.id}: no tokens")
    labels = trial.built.node.output_names()[1:]
    kept = [_bytes_of_rows(trial.bound.outputs[label]) for label in labels]
    return [np.concatenate(rows), *kept]


def _token(alone: GivenCase, t: int, tokens: int) -> GivenCase:
    """Token t of a sequence. Kept planes go down the ring so that the last pass ends at head. With
    a log, the first pass folds, and what earlier ones logged is held."""
    names = alone.names
    token = _present(alone, _PER_TOKEN[alone.op.name])
    changed = {i: _rows_of(alone, names[i])[t : t + 1] for i in token}
    changed[names.index("seq_offsets")] = _offsets([1])
    for i in _state(alone):
        tensor = alone.tensors[i]
        if tensor is None or not _present(alone, ("head",)):
            continue
        planes = tensor.spec.shape[1]
        head = (int(_values(alone, "head")[0]) + tokens - 1 - t) % planes
        changed[names.index("head")] = _indices([head])
        if t:
            changed[names.index("start")] = _indices([(head + 1) % planes])
    if _present(alone, ("log",)):
        changed |= _token_numbers(alone, t)
    return _with(alone, changed)


def _token_numbers(alone: GivenCase, t: int) -> dict[int, np.ndarray]:
    """The numbers of the pass of token t, which leave what the whole pass leaves."""
    names = alone.names
    head, folded, held, direct = (int(_values(alone, name)[0]) for name in _REPLAY)
    log = alone.tensors[names.index("log")]
    size = log.spec.shape[1] if log is not None else 1
    numbers = (
        (head + folded) % size if t else head,
        0 if t else folded,
        held + max(0, t - direct),
        int(t < direct),
    )
    return {names.index(name): _indices([n]) for name, n in zip(_REPLAY, numbers, strict=True)}
