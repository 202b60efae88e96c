"""What a card generates with drafts is what it generates without, token for token, and the logits
behind it bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from cuda_rig import needs_cuda, slow, thinned
from demo import demo
from rollback_rig import STRATEGIES, Plain, require_state, stream, tiny
from spec_rig import (
    GREEDY,
    TEXTS,
    draft_model,
    plain,
    require_equal,
    require_sums,
    right,
    scripted,
    speculation,
    speculator,
)

pytestmark = needs_cuda
KINDS = {"mtp": ("mtp",), "draft": ("draft",), "ngram-mod": ("ngram-mod",)}
KINDS |= {"mod,mtp": ("ngram-mod", "mtp"), "all": ("ngram-mod", "draft", "mtp")}
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "seed": 3}


def check(
    model: rr.Model,
    draft: rr.Model | None,
    kinds: tuple[str, ...],
    prompt: list[int],
    n: int,
    draft_max: int = 3,
    rollback: str = "auto",
    sampling: dict[str, Any] = GREEDY,
) -> int:
    """Generate with and without; how many drafts were accepted. The session ends in the state that
    its tokens leave."""
    asked = speculation(kinds, draft_max, draft_model=draft)
    spec = speculator(model, asked, rollback=rollback)
    got = model.generate(prompt, n, speculative=spec, ignore_eos=True, **sampling).result
    require_equal(got, plain(model, prompt, n, **sampling))
    require_sums(got)
    assert spec.session.tokens() == [*prompt, *got.tokens]
    return int(got.timings["draft_n_accepted"])


# With random weights nothing is foreseen; what is rejected is what these are for.
TINY = {"qwen35,mtp": "mtp", "qwen35": "draft", "llama": "ngram-mod"}
TINY_CASES = [
    *((variant, kind, "auto") for variant, kind in TINY.items()),
    *(("qwen35,mtp", "mod,mtp", rollback) for rollback in STRATEGIES),
]


# Emulated, each case has one of both in turn: greedy with mtp, n-grams and two strategies, seeded
# with a drafting model and the other two.
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED}
TINY_SAMPLED = [
    (*case, name)
    for i, case in enumerate(TINY_CASES)
    for name in thinned([*SAMPLINGS], [[*SAMPLINGS][i % 2]])
]


@pytest.mark.parametrize("variant,kind,rollback,sampling", TINY_SAMPLED)
def test_tiny_models(variant: str, kind: str, rollback: str, sampling: str) -> None:
    model, n = tiny(variant, "cuda"), thinned(100, 16)
    draft = tiny("llama", "cuda") if "draft" in KINDS[kind] else None
    # Text that repeats itself gives n-grams something to find.
    prompt = stream(4)[:6] * 4
    check(model, draft, KINDS[kind], prompt, n, 3, rollback, SAMPLINGS[sampling])


@pytest.mark.parametrize("wrong_at", [None, 0, 2])
@pytest.mark.parametrize(
    "variant,rollback",
    [
        ("qwen35", "auto"),
        *(
            pytest.param(*case, marks=slow)
            for case in (
                *product(("qwen35", "qwen35moe"), STRATEGIES),
                ("llama", "auto"),
                ("gemma3", "auto"),
            )
        ),
    ],
)
def test_scripts(variant: str, rollback: str, wrong_at: int | None) -> None:
    model, prompt, n = tiny(variant, "cuda"), [5, 9, 100, 42], thinned(120, 20)
    want = plain(model, prompt, n, temperature=0.0)
    with scripted(right([*prompt, *want.tokens], wrong_at)):
        spec = speculator(model, speculation(("scripted",), 8), rollback=rollback)
        got = model.generate(prompt, n, speculative=spec, **GREEDY).result
    require_equal(got, want)
    per_round = 8 if wrong_at is None else wrong_at
    assert got.timings["draft_rounds"] == -(-(n - 1) // (1 + per_round))
    like = Plain(model, [*prompt, *want.tokens], len(prompt))
    require_state(spec.session, 0, like)


DEMO = [
    *product(("mtp",), ("auto",), ("p3",)),
    *(
        pytest.param(*case, marks=slow)
        for case in (
            *product(("draft", "ngram-mod", "mod,mtp", "all"), ("auto",), ("p3", "p17", "p200")),
            *product(("mtp",), STRATEGIES, ("p17",)),
        )
    ),
]


@pytest.mark.parametrize("kind,rollback,prompt", DEMO)
def test_the_demo_model(kind: str, rollback: str, prompt: str) -> None:
    kinds, n = KINDS[kind], thinned(200, 8)
    accepted = check(demo("cuda"), draft_model(kinds, "cuda"), kinds, TEXTS[prompt], n, 3, rollback)
    assert accepted > n // 8 or kind == "ngram-mod"


@pytest.mark.parametrize("kind", [pytest.param(k, marks=slow) for k in KINDS])
def test_the_demo_model_seeded(kind: str) -> None:
    kinds = KINDS[kind]
    draft = draft_model(kinds, "cuda")
    check(demo("cuda"), draft, kinds, TEXTS["p64"], thinned(150, 8), 4, "auto", SEEDED)


@pytest.mark.parametrize("stored", ["qwen35", "llama", pytest.param("qwen35moe", marks=slow)])
def test_verified_logits_are_those_of_single_steps(stored: str) -> None:
    """Whatever the number of drafts: row n of a pass has the bits of the n-th step."""
    model, tokens = tiny(stored, "cuda"), stream(9)[:40]
    like = Plain(model, tokens, 5)
    session = model.session(64, n_rs_seq=16)
    session.prefill(tokens[:5])
    for drafts in thinned((0, 1, 2, 3, 4, 7, 8, 15, 16), (1, 3, 8)):
        at = session.length()
        logits = session.verify([(0, tokens[at : at + 1 + drafts])]).logits
        np.testing.assert_array_equal(logits, like.logits(at, at + 1 + drafts))
        session.commit(0, 1)
