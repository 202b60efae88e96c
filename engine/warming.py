"""Passes made in advance, so that no request waits for what is compiled, or recorded on a device,
when sizes come up for the first time.

Those come first that requests have whatever their lengths and drafts are, alone and in company;
with these requests can begin. The others are compiled behind them, on another thread, since there
are hundreds for some models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..graph.errors import RiverrunError
from .buckets import PROMPT_TOKENS
from .engine import Engine
from .pieces import Need, Piece, gathering
from .runner import JOINED_ROWS
from .sequences import Sequences

# Tokens of each text: passes that run ahead of the host need some.
_STEPS = 4


def warm_up(engine: Engine) -> None:
    """Compile steps of every number of requests, however their tokens are chosen, and prompts of
    every size of pass, that the engine distinguishes. The engine should be idle; what its sequences
    held is gone."""
    _make(warm_first(engine))


def warm_first(engine: Engine, more: Sequence[Piece] = ()) -> list[Piece]:
    """Compile what any requests have, elsewhere than on the processor run what one has, too, and
    give the pieces of the rest, in the order of their use. The engine should be idle; what its
    sequences held is gone.

    more: pieces that are left of making the engine."""
    sequences = engine.sequences
    with gathering() as found:
        hidden = engine.prepare()
        sizes = _prompt_sizes(sequences)
        for n in sizes:
            for rows in {False, hidden}:  # drafters do not always want them
                _prepare_prompts(sequences, n, rows)
    # The largest first: others then need no scratch memory of their own.
    largest = sizes[-1]
    _prompt(sequences, largest, 2 if _joins(sequences, largest) else 1, hidden)
    n = min(_STEPS, sequences.n_ctx - 1)
    engine.submit([0], n, temperature=0, ignore_eos=True)
    while not engine.idle:
        engine.step()
    if sequences.plan.capacity.log:
        sequences.runner.fold_step()
    for seq in range(sequences.n_seqs):
        sequences.clear(seq)
    pieces = sorted([*more, *found], key=lambda piece: piece.order)
    first = [piece for piece in pieces if piece.order[0] <= Need.SEVERAL]
    _make(first)
    return pieces[len(first) :]


def _make(pieces: Sequence[Piece]) -> None:
    """Compile and attach them; what cannot be made says so to the requests that need it."""
    for piece in pieces:
        with suppress(RiverrunError):
            piece.compile()
            piece.attach()


def _prompt_sizes(sequences: Sequences) -> list[int]:
    """Tokens of passes over prompts that stand for all."""
    most = min(sequences.storage.chunk, sequences.n_ctx - 1)
    return [n for n in PROMPT_TOKENS if n <= most]


def _joins(sequences: Sequences, n: int) -> bool:
    """Whether a pass of so many tokens may hold several prompts, as plans go."""
    return sequences.storage.joins_prompts and n >= JOINED_ROWS


def _prepare_prompts(sequences: Sequences, n: int, hidden: bool) -> None:
    """Compile passes over prompts of n tokens."""
    kind = sequences.prompt_kind(n)
    for count in (1, 2) if _joins(sequences, n) else (1,):
        sequences.runner.prepare_step(n, count, count, hidden, kind)


def _prompt(sequences: Sequences, n: int, count: int, hidden: bool) -> None:
    """Make a pass over prompts, or compile it."""
    kind = sequences.prompt_kind(n)
    if sequences.model.backend.on_host:
        sequences.runner.step(n, count, count, hidden, kind)
        return
    lengths = [n - 1, 1] if count > 1 else [n]
    for seq in range(count):
        sequences.clear(seq)
    items = [(seq, [0] * length) for seq, length in enumerate(lengths)]
    sequences.evaluate(items, hidden=hidden, kind=kind)
