"""Passes made in advance, so that no request waits for what is compiled, or recorded on a device,
when sizes come up for the first time."""

from __future__ import annotations

from .buckets import TOKENS
from .engine import Engine
from .prompts import pass_kind

# Tokens of each text: passes that run ahead of the host need some.
_STEPS = 4


def warm_up(engine: Engine) -> None:
    """Run steps of every number of requests, and prompts of every size of pass, that the engine
    distinguishes; on the processor, where that is all there is to it, compile those of prompts.
    The engine should be idle; what its sequences held is gone."""
    sequences, n_seqs = engine.sequences, engine.sequences.n_seqs
    able = engine.model.backend.capabilities
    most = min(able.prompt_chunk, sequences.n_ctx - 1)
    sizes = [n for n in TOKENS if n <= most]
    counts = {n for n in TOKENS if n < n_seqs} | {n_seqs}
    room = sequences.n_ctx - 1
    hidden = False
    for count in sorted(counts):
        hidden = _run(engine, count, 1, min(_STEPS, room))
    for n in sizes:
        if able.on_host:
            sequences.runner.step(n, 1, 1, hidden, pass_kind(n))
        else:
            _run(engine, 1, n, 1)
    for seq in range(n_seqs):
        sequences.clear(seq)


def _run(engine: Engine, count: int, length: int, n: int) -> bool:
    """Continue so many texts at once; whether their drafters want hidden rows."""
    for _ in range(count):
        request = engine.submit([0] * length, n, temperature=0, ignore_eos=True)
    while not engine.idle:
        engine.step()
    return request.drafting is not None and request.drafting.hidden
