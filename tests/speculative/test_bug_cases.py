"""Known faults of speculative decoding in other runtimes: where each is tested, and tests of those
that no other file covers."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from typing import Any

import pytest
import riverrun as rr
from demo import demo
from paths import ROOT
from riverrun.engine.chooser import Chooser
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.speculative import Entry
from rollback_rig import STRATEGIES, tiny
from spec_rig import (
    GREEDY,
    KINDS,
    NGRAMS,
    bound_type,
    plain,
    require_equal,
    require_sums,
    right,
    scripted,
    speculation,
    speculator,
)

COVERED = {
    # Undoing a whole pass reports success, and the state is not restored.
    "C01": (
        "tests/engine/test_rollback_passes.py::test_a_first_pass_can_be_undone_whole",
        "tests/engine/test_rollback_matrix.py::test_every_commit_equals_plain_decoding",
    ),
    # A second rollback before a pass; what can be done is not what is done.
    "C03": (
        "tests/engine/test_rollback_passes.py::test_two_removals_equal_one_of_their_sum",
        "tests/engine/test_memory.py::test_what_can_be_forgotten_is_what_was_announced",
        "tests/engine/test_rollback_random.py::test_random_rounds",
    ),
    # A removal is refused, and the prompt goes on from a mixture.
    "C05": (
        "tests/speculative/test_round_endings.py::test_the_same_one_differing_and_a_third",
        "tests/engine/test_rollback_reuse.py::test_a_hybrid_goes_back_to_kept_states",
        "tests/engine/test_memory.py::test_hybrid_is_all_or_nothing",
    ),
    # Accepted states are not committed: loops and dropped tokens.
    "C07": (
        "tests/speculative/test_bug_cases.py::test_repeated_text",
        "tests/speculative/test_bug_cases.py::test_repeated_text_over_quantised_attention",
        "tests/speculative/test_lossless.py::test_greedy_with_the_longest_drafts",
    ),
    # Off by one where none or all of a draft stays.
    "C08": (
        "tests/speculative/test_rounds.py::"
        "test_every_acceptance_leaves_the_state_of_plain_decoding",
        "tests/engine/test_rollback_matrix.py::test_every_commit_equals_plain_decoding",
    ),
    # The matrix state goes back, the convolution's history does not.
    "C10": (
        "tests/speculative/test_rounds.py::"
        "test_every_acceptance_leaves_the_state_of_plain_decoding",
        "tests/engine/test_rollback_passes.py::test_the_edge_of_a_page",
        "tests/ops/test_replay.py::test_any_prefix_of_a_pass_can_be_kept",
    ),
    # Drafters fall out of step on rollback or when a slot is used again.
    "C12": (
        "tests/speculative/test_draft_model.py::test_drafting_for_itself",
        "tests/speculative/test_draft_model.py::test_prompt_reuse",
        "tests/speculative/test_draft_model.py::test_slot_is_used_again",
        "tests/speculative/test_mtp.py::test_500_rounds",
        "tests/speculative/test_mtp.py::test_after_rounds",
        "tests/speculative/test_ngram_sequences.py::"
        "test_after_a_rollback_the_draft_is_a_fresh_drafter_s",
    ),
    # Only the first slot drafts properly.
    "C14": (
        "tests/speculative/test_equal_tokens.py::test_slot_makes_no_difference",
        "tests/speculative/test_mtp.py::test_acceptance_is_the_same_in_every_slot",
        "tests/speculative/test_rounds.py::test_every_slot_drafts_alike",
    ),
    # Passes of several tokens round differently from those of one.
    "C15": (
        "tests/backends/test_mul_mat_cpu.py::test_a_row_does_not_depend_on_its_company",
        "tests/backends/test_attention_cpu.py::test_a_row_is_alone_in_any_company",
        "tests/backends/test_state_kernels_cpu.py::test_a_pass_of_many_tokens_is_the_passes_of_one",
        "tests/engine/test_session.py::test_rows_do_not_depend_on_the_pass",
        "tests/speculative/test_lossless.py::test_greedy_for_longer",
    ),
    # Drafts cross the limits of context, pass or output.
    "C16": (
        "tests/speculative/test_round_endings.py::test_context",
        "tests/speculative/test_round_endings.py::test_long_drafts_with_few_places_left",
        "tests/speculative/test_draft_model.py::test_to_the_end_of_the_context",
    ),
    # The grammar's state is wrong after rejected drafts.
    "C19": (
        "tests/speculative/test_round_endings.py::test_scripted",
        "tests/speculative/test_round_endings.py::test_drafters_of_their_own",
        "tests/engine/test_constraints.py::test_a_switch_at_every_place_of_a_window",
    ),
    # The vocabularies of draft model and target differ.
    "C21": (
        "tests/speculative/test_draft_model.py::test_other_vocabularies_are_refused",
        "tests/speculative/test_draft_model.py::test_padded_vocabularies",
        "tests/speculative/test_rounds.py::test_padding_ids_are_never_verified",
    ),
    # Each round copies the state to the host.
    "C22": ("tests/speculative/test_bug_cases.py::test_state_stays_on_the_device",),
    # Poor drafts make decoding slower than plain.
    "C23": (
        "tests/speculative/test_adaptive.py::test_never_slower_than_plain_by_a_twentieth",
        "tests/speculative/test_equal_tokens.py::test_every_number_of_accepted_drafts",
    ),
    # Memory of snapshots is not in the plan.
    "C25": (
        "tests/speculative/test_bug_cases.py::test_announced_sizes_are_those_of_the_pools",
        "tests/speculative/test_bug_cases.py::test_without_drafts_nothing_is_kept_for_rollback",
        "tests/engine/test_rollback_bytes.py::test_bytes_beyond_the_live_state_of_a_large_model",
    ),
    # Each drafting sequence gets a pass of its own.
    "C27": (
        "tests/speculative/test_bug_cases.py::test_one_pass_a_round",
        "tests/speculative/test_equal_tokens.py::test_unequal_drafts",
        "tests/speculative/test_rounds.py::test_four_sequences_share_one_pass_a_round",
    ),
}


@cache
def _functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("case", COVERED)
def test_is_covered(case: str) -> None:
    for test in COVERED[case]:
        file, name = test.split("::")
        assert (ROOT / file).is_file(), test
        assert name.startswith("test_") and name in _functions(file), test


def _edit() -> str:
    """Source text, and then its start once more."""
    source = inspect.getsource(rr.Model.plan) + inspect.getsource(rr.Model.generate)
    return f"# before\n{source[:1400]}\n# after\n{source[:300]}"


REPEATED = {
    "count": "Count from one to twenty: " + "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, " * 3 + "1, 2,",
    "lines": "".join(f"line {i}: value = {i * i}\n" for i in range(1, 21)) + "line 1:",
    "edit": _edit(),
}


def repeat(name: str, text: str, n: int, kv: str | None = None) -> int:
    """Accepted drafts of a text that came out as without them."""
    model, prompt = demo(), demo().tokenize(REPEATED[text])
    types = {"cache_type_k": kv, "cache_type_v": kv} if kv else {}
    rollback = STRATEGIES[(list(KINDS).index(name) + len(text)) % len(STRATEGIES)]
    asked = speculation(KINDS[name], 16 if name in NGRAMS else 4)
    spec = speculator(model, asked, 1024, rollback=rollback, **types)
    session = model.session(1024, **types)
    options: dict[str, Any] = {"ignore_eos": True, **GREEDY}
    want = model.generate(prompt, n, session=session, **options).result
    got = model.generate(prompt, n, speculative=spec, **options).result
    require_equal(got, want)
    require_sums(got)
    return int(got.timings["draft_n_accepted"])


@pytest.mark.parametrize("text", REPEATED)
@pytest.mark.parametrize("name", NGRAMS)
def test_repeated_text(name: str, text: str) -> None:
    accepted = repeat(name, text, 96)
    assert accepted > 0 or text != "edit"


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["ngram-simple", "mtp"])
def test_repeated_text_over_quantised_attention(name: str, kv: str) -> None:
    assert repeat(name, "edit", 64, kv) > 0


@pytest.mark.parametrize("name", ["mtp", "ngram-cache"])
@pytest.mark.parametrize("rollback", STRATEGIES)
def test_state_stays_on_the_device(rollback: str, name: str) -> None:
    """Only the strategy that is named for it copies states to host memory."""
    model, prompt = demo(), demo().tokenize(REPEATED["count"])
    spec = speculator(model, speculation(KINDS[name], 4), rollback=rollback)
    got = model.generate(prompt, 48, speculative=spec, ignore_eos=True, **GREEDY).result
    t = got.timings
    assert t["draft_n"] > t["draft_n_accepted"] > 0
    assert t["rollback_bytes"] == spec.session.host_bytes
    assert (t["rollback_bytes"] > 0) == (rollback == "checkpoint:host")
    assert {"draft_ms", "verify_ms", "rollback_ms"} <= set(t)
    if rollback == "checkpoint:host":
        state = spec.session.plan.bytes.recurrent
        assert t["rollback_bytes"] % state == 0
        assert t["rollback_bytes"] <= 2 * state * t["draft_rounds"]


def announced(summary: str) -> float:
    """Bytes of device memory that a plan's line names."""
    line = re.sub(r" and [0-9.]+ MiB of host memory", "", summary)
    return sum(float(n) for n in re.findall(r"([0-9.]+) MiB", line)) * 2**20


@pytest.mark.parametrize("n_seqs", [1, 4])
@pytest.mark.parametrize("drafts", [3, 8])
@pytest.mark.parametrize("rollback", STRATEGIES)
def test_announced_sizes_are_those_of_the_pools(rollback: str, drafts: int, n_seqs: int) -> None:
    options: dict[str, Any] = {"n_rs_seq": drafts, "rollback": rollback}
    plan = demo().plan_session(2048, n_seqs, **options)
    allocated = demo().session(2048, n_seqs, **options).pools.nbytes
    assert abs(announced(plan.summary) - allocated) <= 0.05 * allocated
    beyond = {"snapshots": drafts, "checkpoint:device": 1, "checkpoint:host": 0}
    if rollback in beyond:
        assert plan.bytes.rollback == beyond[rollback] * plan.bytes.recurrent
    else:
        # An entry for each draft and state of the log instead of a whole state.
        assert 0 < plan.bytes.rollback < drafts * plan.bytes.recurrent / 4


@pytest.mark.parametrize("rollback", ["auto", *STRATEGIES])
def test_without_drafts_nothing_is_kept_for_rollback(rollback: str) -> None:
    plan = demo().plan_session(512, 4, rollback=rollback)
    assert (plan.bytes.rollback, plan.bytes.host) == (0, 0)
    assert "rollback" not in plan.summary
    session = demo().session(512, 4, rollback=rollback)
    assert session.pools.nbytes == plan.bytes.attention + plan.bytes.recurrent


@pytest.mark.parametrize("n_seqs", [1, 2, 4, 8])
@pytest.mark.parametrize("rollback", STRATEGIES)
def test_one_pass_a_round(rollback: str, n_seqs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of unequal length, some of them wrong, of so many sequences."""
    model, n_rounds = tiny("qwen35"), 6
    prompts = [[5 + seq, 9, 100, 42] for seq in range(n_seqs)]
    texts = [[*p, *plain(model, p, 40, **GREEDY).tokens] for p in prompts]

    def script(seq: int, context: list[int], limit: int) -> list[int]:
        return right(texts[seq], seq % 3 + 1)(seq, context, min(limit, seq % 5))

    with scripted(script):
        spec = speculator(model, speculation(["scripted"], 4), 64, n_seqs, rollback=rollback)
    for seq, prompt in enumerate(prompts):
        spec.prompt(seq, prompt)
    choosers = [
        Chooser(Sampler(SamplerParams(temperature=0.0), model.n_vocab), model.n_vocab)
        for _ in prompts
    ]
    found = [[text[len(p)]] for text, p in zip(texts, prompts, strict=True)]
    bound, passes = bound_type(spec), 0
    run = bound.run  # type: ignore[attr-defined]

    def counted(self: Any, rows: int | None = None) -> None:
        nonlocal passes
        passes += 1
        run(self, rows)

    monkeypatch.setattr(bound, "run", counted)
    for _ in range(n_rounds):
        entries = [Entry(s, found[s][-1], choosers[s]) for s in range(n_seqs)]
        for judged in spec.round(entries):
            entry = judged.entry
            rows = judged.logits.copy()
            chosen = list(spec.asked.judge(entry.chooser, rows, judged.draft, judged.position))
            spec.finish(judged, chosen)
            found[entry.seq] += chosen
    assert passes == spec.statistics.rounds == n_rounds
    for seq, tokens in enumerate(found):
        start = len(prompts[seq])
        assert tokens == texts[seq][start : start + len(tokens)]
