"""What tests of rollback share: a tiny hybrid model, plain decoding to compare with, and sessions
that can be put back to an earlier moment."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import riverrun as rr
from riverrun.engine.memory import PagedKV
from riverrun.engine.session import Session
from tiny_models import N_VOCAB, VARIANTS

# Architectures with recurrent layers of each kind.
HYBRID = ("lfm2", "qwen3next,v=2k", "granitehybrid,experts", "kimi-linear")
STRATEGIES = ("replay", "snapshots", "checkpoint:host", "checkpoint:device")
# Of the weights; emulated kernels are quickest with blocks.
STORED = {"cuda": "q8_0"}
_files = tempfile.TemporaryDirectory()


@cache
def tiny(variant: str = "qwen35", device: str = "cpu") -> rr.Model:
    """A tiny model; qwen35 has three delta-net layers and one with attention."""
    kind = STORED.get(device, "f32")
    path = Path(_files.name, f"{variant}.{kind}.gguf")
    if not path.exists():
        source = VARIANTS[variant]()
        source.kind = kind
        source.write(path)
    return rr.load(path, device=device)


def stream(seed: int, n: int = 600) -> list[int]:
    """The tokens that sequence `seed` commits, in order."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_VOCAB, n)]


class Plain:
    """Decoding of a token sequence one by one, without drafts, as far as it was asked for.

    prompt: so many tokens at its beginning are evaluated as a prompt: where kernels of prompts have
    bits of their own, as on cards, nothing is known of what comes before the last of them."""

    def __init__(self, model: rr.Model, tokens: Sequence[int], prompt: int = 0) -> None:
        self.tokens = list(tokens)
        self._session = model.session(n_ctx=len(self.tokens))
        self._recurrent = [self._now()]
        self._logits: list[np.ndarray] = []
        if prompt:
            last = self._session.prefill(self.tokens[:prompt]).copy()
            self._logits = [np.full_like(last, np.nan)] * (prompt - 1) + [last]
            self._recurrent += [{}] * (prompt - 1) + [self._now()]

    def _now(self) -> dict[str, np.ndarray]:
        parts = self._session.memory.parts
        return {k: v for p in parts if not isinstance(p, PagedKV) for k, v in p.save(0).items()}

    def _reach(self, n: int) -> None:
        while len(self._logits) < n:
            self._logits.append(self._session.decode(self.tokens[len(self._logits)]).copy())
            self._recurrent.append(self._now())

    def logits(self, start: int, stop: int) -> np.ndarray:
        """Rows of tokens start .. stop - 1."""
        self._reach(stop)
        return np.stack(self._logits[start:stop])

    def state(self, n: int) -> dict[str, np.ndarray]:
        """What memory holds after the first n tokens."""
        self._reach(n)
        parts = self._session.memory.parts
        kept = [part.save(0) for part in parts if isinstance(part, PagedKV)]
        return {k: v[:n] for arrays in kept for k, v in arrays.items()} | self._recurrent[n]


@cache
def plain(device: str = "cpu", seed: int = 0, n: int = 600, variant: str = "qwen35") -> Plain:
    """Plain decoding of a stream by a tiny hybrid model, computed once."""
    return Plain(tiny(variant, device), stream(seed, n))


class Moment:
    """All that a session holds, to come back to: pools, bookkeeping, tokens."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pools = {name: session.pools.raw(name) for name in session.pools.specs}
        self._books = [copy.deepcopy(part.__dict__, self._shared()) for part in self._parts()]
        self._texts = copy.deepcopy(self._now())

    def _now(self) -> list[Any]:
        held = self._session.sequences
        return [held._tokens, held._due, held._changing]

    def _parts(self) -> list[Any]:
        return [self._session.memory, *self._session.memory.parts]

    def _shared(self) -> dict[int, Any]:
        """What copies go on referring to."""
        return {id(x): x for x in (self._session.pools, *self._session.memory.parts)}

    def back(self) -> None:
        """Make the session what it was."""
        for name, array in self._pools.items():
            self._session.pools.load(name, array)
        for part, books in zip(self._parts(), self._books, strict=True):
            part.__dict__.update(copy.deepcopy(books, self._shared()))
        held = self._session.sequences
        held._tokens, held._due, held._changing = copy.deepcopy(self._texts)

    def require_now(self) -> None:
        """The session is still exactly what it was."""
        for name, array in self._pools.items():
            require_same(self._session.pools.raw(name), array, name)
        for part, books in zip(self._parts(), self._books, strict=True):
            now = {k: v for k, v in part.__dict__.items() if k not in ("pools", "parts")}
            assert _plain(now) == _plain({k: books[k] for k in now})
        assert self._now() == self._texts


def _plain(x: Any) -> Any:
    """Values that compare with ==, whatever holds them."""
    if isinstance(x, np.ndarray):
        return x.shape, x.tobytes()
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    return _plain(vars(x)) if hasattr(x, "__dict__") else x


def require_state(session: Session, seq: int, like: Plain) -> None:
    """After `settle`, state and tokens are, bit for bit, those of plain decoding.

    Leaves the session settled."""
    session.settle(seq)
    n = session.length(seq)
    assert session.tokens(seq) == like.tokens[:n]
    got, want = session.memory.save(seq), like.state(n)
    assert got.keys() == want.keys()
    for name, array in want.items():
        require_same(got[name], array, f"{name} of sequence {seq} after {n} tokens")


def require_same(got: np.ndarray, want: np.ndarray, name: str) -> None:
    """Same shape, type and bits."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype), name
    assert got.tobytes() == want.tobytes(), f"{name}: {int((got != want).sum())} numbers differ"


def peek(session: Session, likes: Sequence[Plain] | Mapping[int, Plain]) -> None:
    """`require_state` of these sequences, without changing the session."""
    now = Moment(session)
    for seq, like in likes.items() if isinstance(likes, Mapping) else enumerate(likes):
        require_state(session, seq, like)
    now.back()


def forgettable(strategy: str, window: int, pending: int) -> int:
    """How many tokens of a pass can be forgotten."""
    most = {"replay": window + 1, "snapshots": window}.get(strategy, pending)
    return min(most, pending)
