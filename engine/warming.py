"""Passes made in advance, so that no request waits for what is compiled, or recorded on a device,
when sizes come up for the first time."""

from __future__ import annotations

from collections.abc import Sequence

from .buckets import PROMPT_TOKENS, step_counts
from .engine import Engine
from .runner import JOINED_ROWS
from .sequences import Sequences

# Tokens of each text: passes that run ahead of the host need some.
_STEPS = 4


def warm_up(engine: Engine) -> None:
    """Compile steps of every number of requests, however their tokens are chosen, and prompts of
    every size of pass, that the engine distinguishes; elsewhere than on the processor, where that
    is all there is to it, run them, too. The engine should be idle; what its sequences held is
    gone."""
    sequences, n_seqs = engine.sequences, engine.sequences.n_seqs
    most = min(sequences.storage.chunk, sequences.n_ctx - 1)
    hidden = engine.prepare()
    for count in step_counts(n_seqs):
        _run(engine, count, 1, min(_STEPS, sequences.n_ctx - 1))
    # The largest first: others then need no scratch memory of their own.
    for n in reversed([n for n in PROMPT_TOKENS if n <= most]):
        if not sequences.model.backend.on_host:
            _run(engine, 1, n, 1)  # with what drafters do
        for rows in {False, hidden}:  # drafters do not always want them
            _pass(sequences, [n], rows)
            if sequences.storage.joins_prompts and n >= JOINED_ROWS:
                _pass(sequences, [n - 1, 1], rows)
    if sequences.plan.capacity.log:
        sequences.runner.fold_step()
    for seq in range(n_seqs):
        sequences.clear(seq)


def _pass(sequences: Sequences, lengths: Sequence[int], hidden: bool) -> None:
    """Make a pass over prompts, or compile it."""
    n, kind = sum(lengths), sequences.prompt_kind(sum(lengths))
    if sequences.model.backend.on_host:
        sequences.runner.step(n, len(lengths), len(lengths), hidden, kind)
        return
    for seq in range(len(lengths)):
        sequences.clear(seq)
    items = [(seq, [0] * length) for seq, length in enumerate(lengths)]
    sequences.evaluate(items, hidden=hidden, kind=kind)


def _run(engine: Engine, count: int, length: int, n: int) -> None:
    """Continue so many texts at once."""
    for _ in range(count):
        engine.submit([0] * length, n, temperature=0, ignore_eos=True)
    while not engine.idle:
        engine.step()
