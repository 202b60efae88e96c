"""Kinds of faults that speculation has had elsewhere, and which tests look for each here.

C01  undoing a whole pass leaves its state: engine/test_rollback_passes
C03  a second rollback, or query and act disagree: engine/test_rollback_passes
C05  a refused removal is ignored: engine/test_rollback_reuse
C07  accepted states are not committed: test_c07
C08  state off by a step when none or all are accepted: test_rounds, engine/test_rollback_matrix
C10  convolution history stays: test_rounds, engine/test_rollback_matrix
C12  drafters keep what was rolled back, or an old slot: test_c12, test_mtp, test_draft_model
C14  only the first slot drafts: test_rounds, test_mtp
C15  greedy text differs with drafts: test_lossless
C16  drafts cross the end of context or request: test_endings, test_draft_model
C19  a grammar follows rejected drafts: test_endings, engine/test_constraints
C21  vocabularies differ: test_c21, test_draft_model, test_rounds (ids of padding)
C22  state goes through host memory each round: test_c22
C23  drafting by default is slower than none: test_c23, test_adaptive
C25  snapshots that the plan does not know: engine/test_rollback_bytes
C27  a pass for each sequence: test_rounds
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import riverrun as rr
from demo import demo
from paths import ROOT
from riverrun.graph.errors import RequestError
from riverrun.speculative import Speculation, Speculator
from riverrun.speculative.draft import check_vocabulary
from rollback_rig import STRATEGIES, tiny
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
from tiny_models import N_VOCAB, VOCABULARIES, llama

COUNT = "".join(f"{i}, " for i in range(1, 21))
FILE = """class Stack:
    def __init__(self, items=None):
        self.items = list(items or [])

    def push(self, item):
        self.items.append(item)
        return self

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
"""
EDITED = FILE.replace("Stack", "Pile")


def test_the_table_names_files_that_exist() -> None:
    kinds = re.findall(r"^(C\d\d)  .*: (.*)$", __doc__ or "", re.M)
    assert len(kinds) == 16
    for kind, places in kinds:
        for place in re.findall(r"(?:engine/)?test_\w+", places):
            folder = "" if place.startswith("engine/") else "speculative/"
            here = any(name.startswith(place) for name in globals())
            assert here or (ROOT / "tests" / f"{folder}{place}.py").exists(), (kind, place)


# C07


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", [*NGRAMS, "mtp", "draft"])
def test_c07_counting_loses_no_number(name: str, kv: str) -> None:
    """The prompt counts to twenty twice and begins anew; the model goes on from there."""
    model = demo()
    prompt = model.tokenize(f"numbers = [{COUNT}]\nmore = [{COUNT}]\nagain = [1, 2, 3, 4, 5, 6")
    want = plain(model, prompt, 60, temperature=0.0, kv=kv)
    numbers = [int(n) for n in re.findall(r"\d+", " 6" + want.text)]
    assert numbers[:14] == list(range(6, 20))
    for rollback in STRATEGIES if kv == "f16" else ("replay",):
        kinds = {"cache_type_k": kv, "cache_type_v": kv}
        # Short enough for the keys of twelve and the drafts that texts have to have behind them.
        spec = speculator(model, speculation(KINDS[name], 8), rollback=rollback, **kinds)
        got = model.generate(prompt, 60, speculative=spec, ignore_eos=True, **GREEDY).result
        require_equal(got, want)
        require_sums(got)


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_c07_repeating_a_file(rollback: str) -> None:
    """A file stands in the prompt, edited the second time, and begins again: n-grams give long
    drafts of it, which hold as far as the model repeats it."""
    model = demo()
    prompt = model.tokenize(f"{FILE}\n\n{EDITED}\n\nclass Heap:\n    def __init__")
    want = plain(model, prompt, 160, temperature=0.0)
    accepted = 0
    for name in (*NGRAMS, "all"):
        spec = speculator(model, speculation(KINDS[name]), rollback=rollback)
        got = model.generate(prompt, 160, speculative=spec, ignore_eos=True, **GREEDY).result
        require_equal(got, want)
        require_sums(got)
        accepted += int(got.timings["draft_n_accepted"])
    assert accepted > 100


# C12


def counts(spec: Speculator) -> tuple[int, int, int]:
    found = spec.statistics_in_all
    return found.rounds, found.accepted, found.drafted


@pytest.mark.parametrize("name", ["mtp", "draft", "all"])
def test_c12_slots_used_again(name: str) -> None:
    """A slot's new text, with or without a beginning in common, is drafted for as by a fresh
    drafter: same tokens, same acceptance at every place."""
    model, asked = demo(), speculation(KINDS[name], 3)
    used = speculator(model, asked)
    base = TEXTS["p200"]
    prompts = [base, base[:150] + TEXTS["p17"], TEXTS["p64"], base[:150] + TEXTS["p3"], base]
    for prompt in prompts:
        before = counts(used)
        got = model.generate(
            prompt, 40, speculative=used, cache_prompt=True, ignore_eos=True, **GREEDY
        ).result
        assert got.tokens == plain(model, prompt, 40, temperature=0.0).tokens
        after = counts(used)
        fresh = speculator(model, asked)
        model.generate(prompt, 40, speculative=fresh, ignore_eos=True, **GREEDY).result  # noqa: B018
        # n-gram pools outlive a text by design, and may know more.
        if name != "all":
            assert tuple(b - a for a, b in zip(before, after, strict=True)) == counts(fresh)


def test_c12_a_cleared_slot_knows_nothing() -> None:
    model, asked = demo(), speculation(("mtp",), 3)
    spec = speculator(model, asked)
    found = []
    for _ in range(2):
        before = spec.statistics_in_all.accepted
        got = model.generate(TEXTS["p64"], 40, speculative=spec, ignore_eos=True, **GREEDY).result
        found.append((got.tokens, spec.statistics_in_all.accepted - before))
        spec.clear(0)
        assert spec.session.length() == 0
    assert found[0] == found[1]


def test_c12_the_target_drafting_for_itself_is_always_right() -> None:
    """500 tokens with the draft model equal to the target: no draft is ever rejected."""
    model = demo()
    asked = Speculation(("draft",), 4, draft_model=model, adaptive=False)
    spec = speculator(model, asked, n_ctx=640)
    got = model.generate(TEXTS["p64"], 500, speculative=spec, ignore_eos=True, **GREEDY).result
    assert got.timings["draft_n"] == got.timings["draft_n_accepted"]
    assert got.timings["draft_rounds"] == 100


# C21


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rr.Model]:
    """Models with a vocabulary of words, with one that differs at id 70, and with other ends."""
    folder, models = tmp_path_factory.mktemp("family"), {}
    for name in ("target", "same", "another word", "another end"):
        model = llama()
        model.vocab = "gpt2"
        path = folder / f"{name}.gguf"
        if name == "another end":
            model.extra = {"tokenizer.ggml.eos_token_id": 256}
        if name == "another word":
            tokens = list(VOCABULARIES["gpt2"]()["tokenizer.ggml.tokens"])
            tokens[70], tokens[71] = tokens[71], tokens[70]
            model.extra = {"tokenizer.ggml.tokens": tokens}
        models[name] = rr.load(model.write(path), device="cpu")
    return models


@pytest.mark.parametrize(
    "name,message",
    [
        ("another word", r"token 70 is '.*', it should be '.*'"),
        ("another end", r"eos_id is 256, it should be 257"),
    ],
)
def test_c21_refusals_name_what_differs(
    family: dict[str, rr.Model], name: str, message: str
) -> None:
    check_vocabulary(family["target"], family["same"])
    with pytest.raises(RequestError, match=message):
        Speculator(family["target"].session(64), Speculation(("draft",), draft_model=family[name]))


def test_c21_another_family_is_refused_by_its_size(family: dict[str, rr.Model]) -> None:
    with pytest.raises(RequestError, match=rf"{N_VOCAB} and 6144|6144 and {N_VOCAB}"):
        demo().generate(
            TEXTS["p17"], 4, speculative=Speculation(("draft",), draft_model=family["target"])
        )


# C22


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_c22_bytes_to_host_memory(rollback: str) -> None:
    """Within the window only the checkpoint that is meant to lie there goes to host memory."""
    model, prompt = tiny("qwen35"), [5, 9, 100, 42]
    want = plain(model, prompt, 80, temperature=0.0)
    with scripted(right([*prompt, *want.tokens], 2)):
        spec = speculator(model, speculation(("scripted",), 4), rollback=rollback)
        got = model.generate(prompt, 80, speculative=spec, **GREEDY).result
    state = sum(
        array.nbytes
        for name, array in spec.session.memory.save(0).items()
        if name.startswith(("conv_state", "ssm_state"))
    )
    moved = got.timings["rollback_bytes"]
    assert moved == spec.statistics_in_all.rollback_bytes
    if rollback == "checkpoint:host":
        assert moved >= state * got.timings["draft_rounds"]
    else:
        assert moved == 0
    assert got.timings["draft_rounds"] == 27


# C23


def test_c23_drafting_turns_itself_down() -> None:
    """Drafts that never stay and are not free: after a few they are all but given up, and the
    acceptance of every place is told."""
    model, prompt, n = tiny("qwen35"), [5, 9, 100, 42], 400
    want = plain(model, prompt, n, temperature=0.0)
    with scripted(right([*prompt, *want.tokens], 0)):
        spec = speculator(model, speculation(("scripted",), 8, adaptive=True))
    # What passes take is told instead of timed.
    note = spec._times.note
    spec._times.note = lambda tokens, seconds, passes=1: note(  # type: ignore[method-assign]
        tokens, 1 + 0.5 * (tokens - 1), passes
    )
    got = model.generate(prompt, n, speculative=spec, **GREEDY).result
    assert got.tokens == want.tokens
    assert 0 < got.timings["draft_n"] < 0.1 * n
    assert got.timings["draft_skipped"] > 0.9 * n
    assert not np.any(got.timings["draft_accepted_per_position"])


def test_c23_drafting_that_pays_is_kept() -> None:
    model, prompt, n = tiny("qwen35"), [5, 9, 100, 42], 400
    want = plain(model, prompt, n, temperature=0.0)
    with scripted(right([*prompt, *want.tokens])):
        spec = speculator(model, speculation(("scripted",), 8, adaptive=True))
    note = spec._times.note
    spec._times.note = lambda tokens, seconds, passes=1: note(  # type: ignore[method-assign]
        tokens, 1 + 0.05 * (tokens - 1), passes
    )
    length = spec._lengths["scripted"]
    judged = length.note
    length.note = lambda drafted, accepted, seconds, n=1: judged(  # type: ignore[method-assign]
        drafted, accepted, 0.01 * drafted, n
    )
    got = model.generate(prompt, n, speculative=spec, **GREEDY).result
    assert got.tokens == want.tokens
    assert got.timings["draft_rounds"] < n / 4
