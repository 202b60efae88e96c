"""What is generated with drafts is what is generated without, whatever drafts, however long the
drafts and whichever way they are rolled back."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from demo import demo
from rollback_rig import HYBRID, STRATEGIES, tiny
from spec_rig import (
    GREEDY,
    KINDS,
    NGRAMS,
    TEXTS,
    plain,
    require_equal,
    require_sums,
    right,
    scripted,
    speculation,
    speculator,
)

PROMPTS = list(TEXTS)
SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8, "seed": 3},
    "filters": {"temperature": 1.1, "top_k": 12, "top_p": 0.8, "min_p": 0.1, "seed": 4},
    "all open": {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5},
    "penalties": {
        "temperature": 0.7,
        "repeat_penalty": 1.2,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "repeat_last_n": 40,
        "seed": 6,
    },
    "bias": {"temperature": 0.8, "logit_bias": {258: 2.0, 279: -1.0}, "seed": 7},
    "greedy with penalties": {"temperature": 0.0, "repeat_penalty": 1.3, "repeat_last_n": -1},
}


def check(
    kinds: tuple[str, ...],
    prompt: str,
    n: int,
    draft_max: int | None,
    rollback: str = "auto",
    options: dict[str, Any] | None = None,
    sampling: dict[str, Any] = GREEDY,
    **more: Any,
) -> int:
    """Generate with and without; how many drafts were accepted."""
    model = demo()
    spec = speculator(
        model, speculation(kinds, draft_max, **more), rollback=rollback, **(options or {})
    )
    got = model.generate(TEXTS[prompt], n, speculative=spec, ignore_eos=True, **sampling).result
    kv = (options or {}).get("cache_type_k")
    kept = {"kv": kv} if kv else {}
    require_equal(got, plain(model, TEXTS[prompt], n, **sampling, **kept))
    require_sums(got)
    assert spec.session.length() == len(TEXTS[prompt]) + n
    assert spec.sequences.evaluated() == len(TEXTS[prompt]) + n - 1
    return int(got.timings["draft_n_accepted"])


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("rollback", STRATEGIES)
@pytest.mark.parametrize("name", KINDS)
def test_greedy(name: str, rollback: str, longer: bool) -> None:
    odd = (list(KINDS).index(name) + STRATEGIES.index(rollback)) % 2
    draft_max = ((1, 8), (3, 4))[odd][longer]
    at = list(KINDS).index(name) + STRATEGIES.index(rollback) + draft_max
    prompt = PROMPTS[at % len(PROMPTS)]
    accepted = check(KINDS[name], prompt, 100, draft_max, rollback)
    if name in ("draft", "mtp", "all", "mod,mtp"):
        assert accepted > 10


@pytest.mark.parametrize("name", NGRAMS)
def test_greedy_with_the_longest_drafts(name: str) -> None:
    accepted = 0
    for i, prompt in enumerate(PROMPTS, NGRAMS.index(name)):
        accepted += check((name,), prompt, 150, 64, STRATEGIES[i % len(STRATEGIES)])
    # These texts repeat themselves for long.
    assert accepted > 100


@pytest.mark.parametrize("rollback", STRATEGIES)
@pytest.mark.parametrize("name", ["mtp", "draft", "ngram-simple", "all"])
def test_greedy_for_longer(name: str, rollback: str) -> None:
    assert check(KINDS[name], "p17", 400, None, rollback) > 50


@pytest.mark.full
@pytest.mark.parametrize("draft_max", [1, 3, 4, 8, 64])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("rollback", STRATEGIES)
@pytest.mark.parametrize("name", KINDS)
def test_greedy_everything(name: str, rollback: str, prompt: str, draft_max: int) -> None:
    if draft_max == 64 and name in ("draft", "mtp"):
        draft_max = 16
    check(KINDS[name], prompt, 200, draft_max, rollback)


@pytest.mark.parametrize("name", ["mtp", "draft", "ngram-cache", "all"])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_seeded(sampling: str, name: str) -> None:
    """Matching chooses with the numbers of plain decoding."""
    prompt = PROMPTS[(list(SAMPLING).index(sampling) + len(name)) % len(PROMPTS)]
    check(KINDS[name], prompt, 120, 4, sampling=SAMPLING[sampling])


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_seeded_with_every_strategy(rollback: str) -> None:
    assert check(("mtp",), "p64", 200, 3, rollback, sampling=SAMPLING["temperature"]) > 20


@pytest.mark.parametrize("name", ["mtp", "draft", "all"])
def test_adaptive_lengths_change_nothing(name: str) -> None:
    """They follow the clock; the text must not."""
    for prompt in ("p17", "p200"):
        check(KINDS[name], prompt, 150, 8, adaptive=True)
        check(KINDS[name], prompt, 150, 8, adaptive=True, sampling=SAMPLING["filters"])


@pytest.mark.parametrize("kv", ["f32", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["mtp", "ngram-simple", "all"])
def test_against_the_same_attention_memory(name: str, kv: str) -> None:
    rollback = STRATEGIES[len(name) % len(STRATEGIES)]
    options = {"cache_type_k": kv, "cache_type_v": kv}
    check(KINDS[name], "p17", 200, 8, rollback, options)


@pytest.mark.parametrize("kwargs", [{"p_min": 0.6}, {"draft_min": 2}, {"p_min": 0.9}], ids=str)
@pytest.mark.parametrize("name", ["mtp", "draft"])
def test_gates(name: str, kwargs: dict[str, Any]) -> None:
    check(KINDS[name], "p200", 120, 4, **kwargs)


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 3, 7])
@pytest.mark.parametrize(
    "variant,rollback",
    [*product(("qwen35", "qwen35moe", *HYBRID), STRATEGIES), ("llama", "auto"), ("gemma3", "auto")],
)
def test_scripts_on_other_architectures(variant: str, rollback: str, wrong_at: int | None) -> None:
    model, prompt, n = tiny(variant), [5, 9, 100, 42], 120
    want = plain(model, prompt, n, temperature=0.0)
    with scripted(right([*prompt, *want.tokens], wrong_at)):
        spec = speculator(model, speculation(("scripted",), 8), rollback=rollback)
        got = model.generate(prompt, n, speculative=spec, **GREEDY).result
    require_equal(got, want)
    require_sums(got)
    per_round = 8 if wrong_at is None else wrong_at
    assert got.timings["draft_rounds"] == -(-(n - 1) // (1 + per_round))


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_smaller_windows_make_drafts_shorter(rollback: str) -> None:
    model, prompt, n = tiny("qwen35"), [5, 9, 100, 42], 60
    want = plain(model, prompt, n, temperature=0.0)
    with scripted(right([*prompt, *want.tokens], 2)):
        spec = speculator(model, speculation(("scripted",), 8), rollback=rollback, n_rs_seq=3)
        got = model.generate(prompt, n, speculative=spec, **GREEDY).result
        (drafter,) = spec.drafters
    require_equal(got, want)
    longest = max(limit for _, _, limit in drafter.asked)  # type: ignore[attr-defined]
    assert longest == (8 if rollback.startswith("checkpoint") else 3)
