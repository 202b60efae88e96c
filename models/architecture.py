"""The base class of architectures and their registry: one file each in arch/.

An architecture reads its hyperparameters, says which tensors it wants, and builds step graphs."""

from __future__ import annotations

import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from ..graph import Graph, TensorSpec, Value
from ..graph.errors import GraphError, ModelError
from ..graph.unread_types import REFUSED
from ..ops.mul_mat import WEIGHT_TYPES
from .gguf import GgufFile
from .hparams import Hparams, read_hparams
from .memories import MemorySpec, Program
from .step import Capacity, StepGraph, StepShape
from .trunks import Trunks

# Of convolutions.
KERNELS = (
    "ssm_conv1d.weight",
    *(f"ssm_conv1d_{name}.weight" for name in "qkv"),
    "shortconv.conv.weight",
)
# Matrices that converters leave in f32, as vectors.
_PLAIN = (*KERNELS, "ssm_a", "ssm_d", "ssm_norm.weight")
_UNREAD = REFUSED.keys() - set(WEIGHT_TYPES)
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


@dataclass(frozen=True)
class Want:
    """A tensor that an architecture expects: GGUF name, numpy shape, whether it may be missing;
    experts: it holds matrices of a mixture, of which a token takes a few; others: shapes that it
    may have instead, which the graph makes the same of."""

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    experts: bool = False
    others: tuple[tuple[int, ...], ...] = ()

    @property
    def layer(self) -> int | None:
        """The layer that it belongs to, N of a name blk.N.*; None for what belongs to none."""
        head, _, rest = self.name.partition(".")
        number = rest.partition(".")[0]
        return int(number) if head == "blk" and number.isdigit() else None

    @property
    def types(self) -> tuple[str, ...]:
        """Types it may be stored in."""
        plain = len(self.shape) == 1 or self.name.endswith(_PLAIN)
        return ("f32",) if plain else WEIGHT_TYPES


class Architecture(ABC):
    """One `general.architecture`."""

    name: ClassVar[str]
    # Whether files say by attention.head_count_kv 0 which layers do not attend.
    hybrid: ClassVar[bool] = False
    output_norm: ClassVar[str] = "output_norm.weight"

    def __init__(self, file: GgufFile, n_vocab: int) -> None:
        self.hp: Hparams = read_hparams(file, self.name, n_vocab, self.hybrid)
        self.read(file)
        self._trunks = Trunks(lambda s: self.trunk(s, self.embed(s)))

    @abstractmethod
    def read(self, file: GgufFile) -> None:
        """Read and check the keys that only this architecture has."""

    @abstractmethod
    def wants(self) -> Iterator[Want]:
        """All tensors that a file of this architecture may have."""

    @abstractmethod
    def trunk(self, s: StepGraph, x: Value) -> Value:
        """All layers: embedded tokens [N, n_embd] to the residual stream before the final norm.

        Built once for steps that differ in what they give: of s.shape it knows the numbers of
        tokens and sequences."""

    def embed(self, s: StepGraph) -> Value:
        """Token embeddings [N, n_embd]."""
        return s.g.get_rows(s.w("token_embd.weight"), s.inputs.tokens, name="embed")

    def head(self, s: StepGraph, h: Value) -> Value:
        """Logits [M, n_vocab] of rows after the final norm."""
        return s.g.mul_mat(h, s.w(self.head_weight(s.has)), name="output")

    def draft_head_weight(self, has: Callable[[str], bool]) -> str:
        """The tensor whose first rows make the draft head."""
        return self.head_weight(has)

    def head_weight(self, has: Callable[[str], bool]) -> str:
        """The tensor that the head multiplies with: its own, or the embedding's."""
        return "output.weight" if has("output.weight") else "token_embd.weight"

    def build(self, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]) -> Graph:
        """The graph of one step; outputs "logits" [M, n_vocab] and, if asked, "hidden" [N, E]."""
        name = f"{self.name} n={shape.n_tokens} b={shape.n_seqs}"
        s, x = self._trunks.begin(name, shape, capacity, weights)
        self.finish(s, x, self.output_norm, self.head)
        return s.g

    def ahead(
        self,
        shape: StepShape,
        capacity: Capacity,
        weights: dict[str, TensorSpec],
        n_vocab: int,
    ) -> Graph:
        """The graph of one step of N sequences that reads each one's token from the state
        NEXT_TOKEN and picks its next one itself, of the first n_vocab. shape: a token of each
        sequence, and logits of every row.

        Inputs in place of build's "tokens": token_slots i32[N], the row of NEXT_TOKEN where a row's
        token is read, and next_slots i32[N], the row that its pick is written to, < 0 for none (as
        for padding rows, which may read any token). With several candidates those of op `sample`:
        top_k i32[N], temperature, top_p and min_p f64[N], seed i32[N, 2], and draw_position i32[N],
        the position that a row's pick will have.
        Outputs "token" i32 [N, 1], the picks, and "largest" f32 [N, K], the K = shape.candidates
        largest logits of each row (all, where n_vocab is less), descending, or first NaN.

        Raises GraphError for a `finish` that does not give its logits to StepGraph."""
        name = f"{self.name} ahead b={shape.n_seqs} k={shape.candidates}"
        s, x = self._trunks.begin(name, shape, capacity, weights, picks=n_vocab)
        self.finish(s, x, self.output_norm, self.head)
        if "token" not in s.g.outputs:
            raise GraphError(
                f"architecture {self.name!r}: `finish` should give its logits to "
                f"StepGraph.output_logits, got outputs {sorted(s.g.outputs)}"
            )
        return s.g

    def finish(
        self, s: StepGraph, x: Value, norm: str, head: Callable[[StepGraph, Value], Value]
    ) -> None:
        """Outputs of the residual stream x [N, n_embd]: hidden rows if asked, logits where wanted;
        with neither, what only they would need is not computed.

        How every program ends: one that ends otherwise gives its logits to
        StepGraph.output_logits, too. norm: the final norm's weight; head: rows after it to
        logits."""
        g, rows = s.g, s.inputs.out_rows
        if not s.shape.hidden and not s.shape.n_out:
            return
        if rows is not None and not s.shape.hidden:
            x, rows = g.get_rows(x, rows, name="out_rows"), None
        h = g.rms_norm(x, s.w(norm), eps=self.hp.eps, name="output_norm")
        if s.shape.hidden:
            g.output("hidden", h)
        if s.shape.n_out:
            s.output_logits(head(s, h if rows is None else g.get_rows(h, rows, name="out_rows")))

    @abstractmethod
    def memories(self) -> tuple[MemorySpec, ...]:
        """What `trunk` reads and writes between passes; its states are the trunk's, no others."""

    def programs(self) -> dict[str, Program]:
        """What a model can run, by name: "trunk", a step; "ahead", a step that picks its tokens;
        "folds", passes without tokens; "mtp", the block that predicts further tokens. Those that a
        model does not have raise GraphError or ModelError when they are built."""
        memories = self.memories()
        return {
            "trunk": Program(self.build, memories),
            "ahead": Program(self.ahead, memories, picks=True),
            "folds": Program(self.folds, ()),
            "mtp": Program(self.mtp, ()),
        }

    def folds(self, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]) -> Graph:
        """A graph of the recurrent ops alone, for passes without tokens, which complete what
        replay logs hold. Raises GraphError for an architecture without recurrent layers."""
        raise GraphError(f"architecture {self.name!r} has no recurrent layers")

    def mtp(self, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]) -> Graph:
        """The graph of the multi-token-prediction block: build's inputs and "hidden_in" [N, E], the
        rows after the final norm of the tokens before; outputs as of build.

        Raises ModelError for a model without such a block."""
        raise ModelError(
            f"architecture {self.name!r} has no multi-token-prediction block; use another drafter"
        )

    def common_wants(self) -> Iterator[Want]:
        """Embedding, final norm, head."""
        hp = self.hp
        yield Want("token_embd.weight", (hp.n_vocab, hp.n_embd))
        yield Want(self.output_norm, (hp.n_embd,))
        yield Want("output.weight", (hp.n_vocab, hp.n_embd), optional=True)


ARCHITECTURES: dict[str, type[Architecture]] = {}
A = TypeVar("A", bound=type[Architecture])


def register_architecture(cls: A) -> A:
    """Class decorator: add an architecture under its name. Raises GraphError when taken."""
    if cls.name in ARCHITECTURES:
        raise GraphError(f"architecture {cls.name!r} is defined twice")
    ARCHITECTURES[cls.name] = cls
    return cls


def architectures() -> dict[str, type[Architecture]]:
    """All that are there, by general.architecture."""
    from . import arch

    for info in sorted(pkgutil.iter_modules(arch.__path__), key=lambda m: m.name):
        importlib.import_module(f"{arch.__name__}.{info.name}")
    return dict(sorted(ARCHITECTURES.items()))


def find_architecture(file: GgufFile) -> type[Architecture]:
    """The class for a file's general.architecture. Raises ModelError listing the known ones."""
    known, name = architectures(), file.get_str("general.architecture")
    if name not in known:
        raise ModelError(
            f"{file.path}: architecture {name!r} is not supported; known: {', '.join(known)}"
        )
    return known[name]


def check_tensors(arch: Architecture, file: GgufFile) -> None:
    """Raise one ModelError that lists every missing, unexpected and misshapen tensor, and those
    of a type that no op reads; and the key that counts the blocks which are one too many."""
    wants = {w.name: w for w in arch.wants()}
    have = file.infos
    missing = [w.name for w in wants.values() if not w.optional and w.name not in have]
    unknown = [name for name in have if name not in wants]
    wrong = [
        f"{name} has shape {have[name].shape}, expected {w.shape}"
        for name, w in wants.items()
        if name in have and have[name].shape not in (w.shape, *w.others)
    ]
    stored = [
        f"{name} is {have[name].type_name}, expected {' or '.join(w.types)}"
        for name, w in wants.items()
        if name in have and have[name].type_name not in (*w.types, *_UNREAD)
    ]
    empty = [f"{w.name} {w.shape}" for w in wants.values() if 0 in w.shape]
    found = {
        "of a type that is not read": _unread(file),
        "missing": missing,
        "unexpected": unknown,
        "misshapen": wrong,
        f"empty ({arch.name}.feed_forward_length should be 1 or more)": empty,
        "of unsupported type (requantise the model)": stored,
        "blocks": _miscounted(arch, [*missing, *unknown]),
    }
    problems = [f"{label}: {', '.join(names)}" for label, names in found.items() if names]
    if problems:
        raise ModelError(
            f"{file.path}: tensors do not match architecture {arch.name!r}: {'; '.join(problems)}"
        )


def _unread(file: GgufFile) -> list[str]:
    """The types of a file that weights are not read in: of which tensors, why, and the remedy."""
    names: dict[str, list[str]] = {}
    for name, row in file.infos.items():
        if row.type_name in _UNREAD:
            names.setdefault(row.type_name, []).append(name)
    return [
        f"{first}{f' and {len(rest)} more are' if rest else ' is'} {kind}, {REFUSED[kind]}"
        for kind, (first, *rest) in names.items()
    ]


def _miscounted(arch: Architecture, names: Sequence[str]) -> list[str]:
    """The keys that count blocks, where these tensors, missing or unexpected, tell of blocks that
    are there and not counted, or counted and not there."""
    hp, n_mtp = arch.hp, arch.hp.n_layer_all - arch.hp.n_layer
    blocks = {int(match[1]) for name in names if (match := _BLOCK.match(name))}
    out = []
    if any(".nextn." in name for name in names):
        out.append(
            f"{arch.name}.nextn_predict_layers, {n_mtp} here, counts those with nextn tensors "
            "(multi-token prediction)"
        )
    if max(blocks, default=0) >= hp.n_layer_all:
        out.append(f"{arch.name}.block_count, {hp.n_layer_all} here, counts all of them")
    return out
