"""Programs whose passes pick their own tokens: of several sequences at once, and with the end that
an architecture gives its trunk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import riverrun as rr
from picks import ROWS, Sequences, check
from riverrun.graph import Value
from riverrun.graph.errors import GraphError
from riverrun.models.arch.llama import Llama
from riverrun.models.arch.qwen35 import Qwen35
from riverrun.models.step import Capacity, StepGraph, StepShape
from rollback_rig import tiny

PROMPTS = ([5, 17, 3, 90, 41, 8], [7], [200, 4, 4])


def started(sequences: Sequences) -> Sequences:
    for seq, prompt in enumerate(PROMPTS):
        sequences.prompt(seq, prompt)
    return sequences


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("variant", ["llama", "gemma3,cap", "qwen35"])
def test_several_sequences_pick_their_tokens(variant: str, padded: bool) -> None:
    """Also where other or fewer sequences follow, greedy ones alone or beside others."""
    found = check(started(Sequences(tiny(variant), 280)), padded)
    assert all(len(set(tokens)) > 1 for tokens in found[1:])


def test_a_vocabulary_below_the_candidates() -> None:
    """All tokens are candidates then."""
    asked = [
        rr.SamplerParams(temperature=0),
        *(rr.SamplerParams(seed=2, top_k=k, temperature=2, top_p=1, min_p=0) for k in (20, 29)),
    ]
    sequences = Sequences(tiny("llama"), 30, None, asked)
    for seq in range(3):
        sequences.prompt(seq, [3, 9 + seq])
    check(sequences)
    assert sequences.passes[64].outputs["largest"].shape == (ROWS, 30)


def test_a_pass_may_leave_the_newest_token() -> None:
    sequences = started(Sequences(tiny("llama"), 280))
    bound = sequences.passes[1]
    first, _ = sequences.together((0,))
    before = sequences.ahead.read("next_token", slice(0, 3)).tolist()
    assert before == [first, [7.0], [4.0]]
    bound.inputs["next_slots"][...] = -1
    bound.run()
    assert sequences.ahead.read("next_token", slice(0, 3)).tolist() == before


@pytest.mark.parametrize("k", [1, 64])
def test_nan_among_logits_comes_first(k: int) -> None:
    """Wherever it is, and in its own row alone."""

    class Spoiled(Llama):
        def head(self, s: StepGraph, h: Value) -> Value:
            spoil = np.zeros((ROWS, self.hp.n_vocab), np.float32)
            spoil[1, 77] = np.nan
            logits = super().head(s, h)
            return s.g.add(logits, s.g.constant(spoil[: logits.shape[0]], "spoil"))

    model = tiny("llama")
    asked = rr.SamplerParams(temperature=0) if k == 1 else rr.SamplerParams(seed=1, top_k=5)
    sequences = Sequences(model, 280, built(Spoiled, model), [asked] * 3)
    for seq, prompt in enumerate(PROMPTS):
        sequences.prompt(seq, prompt)
    _, largest = sequences.together((0, 1, 2))
    assert largest.shape == (3, k)
    assert np.isfinite(largest[[0, 2]]).all() and np.isnan(largest[1, 0])


class Turned(Llama):
    """Its trunk's end has the other sign."""

    def finish(
        self, s: StepGraph, x: Value, norm: str, head: Callable[[StepGraph, Value], Value]
    ) -> None:
        super().finish(s, s.g.scale(x, factor=-1.0, name="turned"), norm, head)


class Flat(Llama):
    """It ends by itself: no norm, and small logits."""

    def finish(
        self, s: StepGraph, x: Value, norm: str, head: Callable[[StepGraph, Value], Value]
    ) -> None:
        s.output_logits(s.g.scale(head(s, x), factor=0.125, name="flat"))


class Lost(Llama):
    """Its logits are an output, whatever they are wanted for."""

    def finish(
        self, s: StepGraph, x: Value, norm: str, head: Callable[[StepGraph, Value], Value]
    ) -> None:
        s.g.output("logits", head(s, x))


def built(of: type[Llama], model: rr.Model) -> Llama:
    return of(model.source.file, model.n_vocab)


@pytest.mark.parametrize("of", [Turned, Flat])
def test_passes_end_as_the_architecture_has_it(of: type[Llama]) -> None:
    model = tiny("llama")
    found = check(started(Sequences(model, 280, built(of, model))))
    assert found != check(started(Sequences(model, 280)))


def test_logits_that_are_not_handed_on_are_refused() -> None:
    model = tiny("llama")
    shape, capacity = StepShape(1, 1, 1), Capacity(1, 1, 1)
    with pytest.raises(GraphError, match=r"'llama'.*finish.*output_logits"):
        built(Lost, model).ahead(shape, capacity, model.source.specs, 280)


def test_every_program_ends_in_the_same_way() -> None:
    class Marked(Qwen35):
        def finish(
            self, s: StepGraph, x: Value, norm: str, head: Callable[[StepGraph, Value], Value]
        ) -> None:
            super().finish(s, s.g.scale(x, factor=2.0, name="marked"), norm, head)

    model = rr.load(rr.DEMO_MODEL, device="cpu")
    arch, specs = Marked(model.source.file, model.n_vocab), model.source.specs
    shape, capacity = StepShape(2, 2, 2), Capacity(2, 1, 2)
    for g in (
        arch.build(shape, capacity, specs),
        arch.mtp(shape, capacity, specs),
        arch.ahead(shape, capacity, specs, model.n_vocab),
    ):
        assert sum(n.name == "marked" for n in g.nodes) == 1
        assert set(g.outputs) == ({"token", "largest"} if "ahead" in g.name else {"logits"})
