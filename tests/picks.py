"""Passes that pick the tokens of several sequences, beside steps that give a sampler its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import riverrun as rr
from riverrun.backends import BoundPlan, Pools
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.models.architecture import Architecture
from riverrun.models.step import CANDIDATES, NEXT_TOKEN, PAGE, Capacity, StepShape

ROWS = 4  # of a pass
ASKED = (
    SamplerParams(temperature=0, seed=1),
    SamplerParams(seed=3),
    SamplerParams(seed=2**64 - 5, temperature=1.7, top_k=64, top_p=1, min_p=0),
)
# Passes of some of the sequences in any order, so that rows change places between them.
PASSES = ((0, 1, 2), (2, 0), (1,), (0,), (2, 1, 0), (0,), (1, 2), (2,), (0, 1, 2), (1, 0))


class Sequences:
    """Sequences of up to PAGE tokens, each with a page and a row of its own, on two sets of pools:
    `ahead` for passes that pick their tokens, `plain` for steps of one token."""

    def __init__(
        self,
        model: rr.Model,
        n_vocab: int,
        arch: Architecture | None = None,
        asked: Sequence[SamplerParams] = ASKED,
    ) -> None:
        self.model, self.n_vocab, self.asked = model, n_vocab, asked
        arch, n = arch or model.source.arch, len(asked)
        capacity, specs = Capacity(n_pages=n, pages_per_seq=1, rows=n), model.source.specs
        compile_graph = model.backend.compile
        self._step = compile_graph(arch.build(StepShape(1, 1, 1), capacity, specs))
        passes = {
            k: compile_graph(
                arch.ahead(StepShape(ROWS, ROWS, ROWS, candidates=k), capacity, specs, n_vocab)
            )
            for k in (1, CANDIDATES)
        }
        states = passes[1].states
        self.ahead, self.plain = (model.backend.pools(states) for _ in range(2))
        self.passes = {k: plan.bind(model.weights, self.ahead) for k, plan in passes.items()}
        self.samplers = [Sampler(params, n_vocab) for params in asked]
        self.lengths, self.newest = [0] * n, [0] * n
        self._steps = [self._step.bind(model.weights, p) for p in (self.plain, self.ahead)]

    def prompt(self, seq: int, tokens: Sequence[int]) -> None:
        """Evaluate all but the last, which the next pass starts from."""
        for at, token in enumerate(tokens[:-1]):
            for bound in self._steps:
                self._one(bound, seq, token, at)
        self.lengths[seq], self.newest[seq] = len(tokens) - 1, tokens[-1]
        self.ahead.write(NEXT_TOKEN, seq, np.array([tokens[-1]], np.float32))

    def _one(self, bound: BoundPlan, seq: int, token: int, position: int) -> np.ndarray:
        fill(bound, [seq], [position])
        bound.inputs["tokens"][...] = token
        bound.run()
        logits: np.ndarray = bound.outputs["logits"][0, : self.n_vocab].copy()
        return logits

    def together(self, seqs: Sequence[int], rows: int | None = None) -> tuple[Any, Any]:
        """One pass: a token of each sequence, and their largest logits."""
        draws = [self.samplers[seq].device_draw for seq in seqs]
        assert None not in draws
        k = max(draw.candidates for draw in draws if draw is not None)
        bound = self.passes[k]
        fill(bound, seqs, [self.lengths[seq] for seq in seqs])
        inputs, n = bound.inputs, len(seqs)
        inputs["token_slots"][:n] = inputs["next_slots"][:n] = seqs
        inputs["next_slots"][n:] = -1
        for i, draw in enumerate(draws if k > 1 else ()):
            for name in ("top_k", "temperature", "top_p", "min_p"):
                inputs[name][i] = getattr(draw, name)
            inputs["seed"].view(np.uint32)[i] = draw.seed & 0xFFFFFFFF, draw.seed >> 32
            inputs["draw_position"][i] = self.lengths[seqs[i]] + 1
        bound.run(rows)
        return bound.outputs["token"][:n, 0].tolist(), bound.outputs["largest"][:n].copy()

    def alone(self, seq: int) -> tuple[int, np.ndarray]:
        """The same for one sequence, chosen by its sampler."""
        position = self.lengths[seq]
        logits = self._one(self._steps[0], seq, self.newest[seq], position)
        token = self.samplers[seq].sample(logits, position + 1)
        self.lengths[seq], self.newest[seq] = position + 1, token
        return token, -np.sort(-logits)

    def states(self, pools: Pools) -> dict[str, np.ndarray]:
        """All but the newest tokens."""
        return {name: pools.raw(name) for name in pools.specs if name != NEXT_TOKEN}


def fill(bound: BoundPlan, seqs: Sequence[int], positions: Sequence[int]) -> None:
    """The inputs of a step of one token of each sequence; the rest is padding."""
    for name, array in bound.inputs.items():
        array[...] = -1 if name == "kv_rows" else 0
    n, inputs = len(seqs), bound.inputs
    given = {
        "positions": positions,
        "kv_rows": [seq * PAGE + at for seq, at in zip(seqs, positions, strict=True)],
        "block_table": [[seq] for seq in seqs],
        "state_rows": seqs,
    }
    for name, values in given.items():
        if name in inputs:
            inputs[name][:n] = values
    offsets = inputs["seq_offsets"]
    offsets[...] = np.minimum(np.arange(len(offsets)), n)


def check(sequences: Sequences, padded: bool = True) -> list[list[int]]:
    """Tokens of all PASSES, which are those that each sequence's sampler chooses. padded: rows of
    padding are computed in every pass, or in every second one."""
    found: list[list[int]] = [[] for _ in sequences.asked]
    for i, seqs in enumerate(PASSES):
        rows = None if padded or i % 2 else len(seqs)
        tokens, largest = sequences.together(seqs, rows)
        for row, seq in enumerate(seqs):
            token, logits = sequences.alone(seq)
            assert tokens[row] == token, (i, seq)
            np.testing.assert_array_equal(largest[row], logits[: largest.shape[1]])
            found[seq].append(token)
        for seq, token in enumerate(sequences.newest):
            assert sequences.ahead.read(NEXT_TOKEN, seq).item() == token
    one, two = (sequences.states(p) for p in (sequences.plain, sequences.ahead))
    for name, raw in one.items():
        np.testing.assert_array_equal(two[name], raw, err_msg=name)
    return found
