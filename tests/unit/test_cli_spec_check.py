"""`riverrun spec check`: equal runs, and planted faults that it finds and names."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from cli import DEVICE, LIMIT, run_cli
from demo import demo
from paths import DEMO, ROOT
from refusing import Without
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.reference import BoundReference, ReferenceBackend
from riverrun.backends.scheduler import SplitBackend
from riverrun.engine.bound_step import BoundStep, Part
from riverrun.engine.captured import CapturingRunner
from riverrun.engine.chooser import Chooser
from riverrun.engine.memory import HybridMemory, PagedKV
from riverrun.engine.memory.snapshots import Snapshots
from riverrun.engine.offload import Offload
from riverrun.engine.sampler import SamplerParams
from riverrun.engine.sequences import Sequences
from riverrun.engine.session import Pass
from riverrun.models import load_file
from riverrun.speculative.acceptance import RULES, match
from riverrun.speculative.check import Asked, Check, Recorder
from riverrun.speculative.drafter import Draft
from riverrun.speculative.options import Speculation
from riverrun.tools import spec_check
from riverrun.tools.loading import Loading

PROMPT = "import os\ndef f("
FIELDS = "equal tokens rounds drafted accepted rollback model device first_difference"
SNAPSHOTS = ("--rollback", "snapshots")
SAMPLED = ("--temp", 0.8, "--seed", 0, "--ignore-eos")


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model is loaded once for all tests here."""
    load = spec_check.load_asked

    def once(loading: Loading, offload: Offload) -> rr.Model:
        return demo(loading.device) if loading.model == DEMO else load(loading, offload)

    monkeypatch.setattr(spec_check, "load_asked", once)


def check(
    capsys: pytest.CaptureFixture[str], *options: object, n: int = 40, device: str = DEVICE
) -> dict[str, Any]:
    """The object of one check of the demo model."""
    arguments = ("spec", "check", DEMO, "-p", PROMPT, "-n", n, "--device", device)
    outcome = run_cli(capsys, *arguments, *options, "--json")
    assert outcome.err == "" and outcome.out.count("\n") == 1, outcome
    found = json.loads(outcome.out)
    assert list(found) == FIELDS.split()
    assert outcome.code == (0 if found["equal"] else 1)
    assert found["equal"] == (found["first_difference"] is None)
    return found


def difference(capsys: pytest.CaptureFixture[str], *options: object, **more: Any) -> dict[str, Any]:
    """The difference that a check finds."""
    return check(capsys, *options, **more)["first_difference"]


@pytest.mark.parametrize(
    "options",
    [
        ("--spec", "mtp", "--rollback", "replay"),
        ("--spec", "mtp", *SNAPSHOTS, *SAMPLED),
        ("--spec", "ngram-simple,mtp", "--rollback", "checkpoint:host", "--draft-max", 5),
        ("--spec", "ngram-cache", *SNAPSHOTS, "--cache-type-k", "q8_0", "--cache-type-v", "bf16"),
    ],
    ids=lambda options: "-".join(str(o).strip("-") for o in options),
)
def test_equal_runs(capsys: pytest.CaptureFixture[str], options: tuple[object, ...]) -> None:
    found = check(capsys, *options)
    assert found["equal"] and found["tokens"] == 40
    assert 0 < found["accepted"] <= found["drafted"] and 0 < found["rounds"] < 40
    assert found["rollback"] in options


def test_the_line_of_equal_runs(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "spec", "check", DEMO, "-p", PROMPT, "-n", 24, "--device", DEVICE)
    found = check(capsys, n=24)
    counts = f"{found['rounds']} rounds, accepted {found['accepted']} of {found['drafted']}"
    assert (outcome.code, outcome.out, outcome.err) == (0, f"equal: 24 tokens, {counts}\n", "")


def test_the_tokens_are_those_of_generate() -> None:
    model = demo(DEVICE)
    prompt = model.tokenize(PROMPT)
    for params in (SamplerParams(temperature=0), SamplerParams(temperature=1.0, seed=4)):
        drafted = model.plan_session(64, n_rs_seq=3)
        asked = Asked(model.plan_session(64), drafted, Speculation(("mtp",)), prompt, 20, params)
        found = Check(model, asked)
        found.run()
        assert found.parting is None
        same = {"temperature": params.temperature, "seed": params.seed}
        tokens = model.generate(prompt, 20, n_ctx=64, **same).result.tokens
        assert found.tokens[: len(tokens)] == tokens and len(tokens) > 5


@pytest.mark.parametrize("off", [1, -1], ids=["one too many", "one too few"])
def test_a_commit_of_the_wrong_length(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    """From some length on the recurrent memory keeps the state of another token."""
    commits: list[tuple[int, int, bool]] = []

    def wrong(self: Snapshots, seq: int, n: int) -> None:
        pending = self._pending[seq]
        kept = n + off if self._length[seq] > 24 and 1 < n < pending - 1 else n
        commits.append((pending, n, kept != n))
        self._go_back(seq, pending - kept)
        super(Snapshots, self)._commit(seq, n)

    monkeypatch.setattr(Snapshots, "_commit", wrong)
    found = difference(capsys, *SNAPSHOTS, *SAMPLED, n=100)
    assert found["cause"] == "state" and found["node"] is None
    state = found["state"]
    # The first commit is the prompt's.
    first = next(i for i, (_, _, planted) in enumerate(commits) if planted)
    assert state["round"] == found["cause_round"] == first > 2
    assert (state["verified"], state["committed"]) == commits[first][:2]
    assert (state["tensor"], state["layer"], state["row"]) == ("conv_state.0", 0, 0)
    assert 0 < state["differing"] <= state["values"] and state["largest"] > 0
    assert found["round"] > first


def test_keys_written_to_a_wrong_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = PagedKV.rows

    def wrong(self: PagedKV, seq: int, start: int, n: int) -> np.ndarray:
        found = rows(self, seq, start, n).copy()
        if start > 9:
            found[1] = found[-1]
        return found

    monkeypatch.setattr(PagedKV, "rows", wrong)
    found = difference(capsys, *SNAPSHOTS, *SAMPLED, "--seed", 3)
    state, node = found["state"], found["node"]
    assert found["cause"] == "state" and state["tensor"] == "cache_k.3" and state["row"] > 10
    assert (node["op"], node["name"], node["row"]) == ("attention", "blk.3.attention", 1)
    assert node["position"] == state["row"] and node["round"] == state["round"]


@cache
def split() -> rr.Model:
    """The demo model on the CPU, but for `silu`, which the reference backend computes."""
    cpu = CpuBackend(2, oversubscribe=True)
    parts = SplitBackend([Without(cpu, "silu"), ReferenceBackend()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("riverrun.engine.offload.open_backend", lambda *_: parts)
        return rr.engine.Model(load_file(DEMO), "cpu")


def perturb(monkeypatch: pytest.MonkeyPatch, name: str, row: int, by: float) -> None:
    """Take the model that is split, and let a node of the reference backend be wrong in one row
    of passes of several tokens."""
    monkeypatch.setattr(spec_check, "load_asked", lambda *_: split())
    apply = BoundReference._apply

    def wrong(self: BoundReference, node: Any, args: list[Any]) -> tuple[Any, ...]:
        found = apply(self, node, args)
        if node.name == name and self.plan.kind == "step" and len(found[0]) > 1:
            found[0][row] += by
        return found

    monkeypatch.setattr(BoundReference, "_apply", wrong)


@pytest.mark.parametrize("rollback", ["snapshots", "checkpoint:host"])
def test_a_node_that_is_wrong_in_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rollback: str
) -> None:
    perturb(monkeypatch, "blk.2.conv_act", 1, 5.0)
    found = difference(capsys, "--rollback", rollback, n=8)
    node = found["node"]
    assert (node["op"], node["name"], node["position"] >= 7) == ("silu", "blk.2.conv_act", True)
    assert node["largest"] == pytest.approx(5.0, rel=1e-3)
    assert 0 <= node["row"] <= 1 and node["round"] == found["cause_round"]
    assert found["logits_largest_difference"] > 0
    assert found["plain"]["logit_plain"] != found["plain"]["logit_drafted"]


def choose_wrongly(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the drafted run choose another token at a position."""

    def wrong(chooser: Chooser, logits: np.ndarray, draft: Draft, position: int) -> Iterator[int]:
        for i, token in enumerate(match(chooser, logits, draft, position)):
            yield token + (position + i == at)

    monkeypatch.setitem(RULES, "match", wrong)


def test_a_wrong_row_that_shows_later(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is that of the first pass, the node the wrong one, not the ones behind it."""
    perturb(monkeypatch, "blk.2.conv_act", 0, 1e-5)
    choose_wrongly(monkeypatch, 24)
    found = difference(capsys, *SNAPSHOTS)
    assert found["cause"] == "state" and found["state"]["round"] == 1
    assert found["state"]["tensor"] == "ssm_state.2"
    assert (found["node"]["name"], found["node"]["row"]) == ("blk.2.conv_act", 0)
    assert found["round"] > 1


def fill_wrongly(monkeypatch: pytest.MonkeyPatch, change: Callable[[BoundStep, int], None]) -> None:
    """Change the inputs of passes in sessions that can forget."""
    fill = BoundStep.fill

    def wrong(self: BoundStep, parts: list[Part], total: int) -> None:
        fill(self, parts, total)
        if any(isinstance(part, Snapshots) for part in self.memory.parts):
            change(self, total)

    monkeypatch.setattr(BoundStep, "fill", wrong)


def test_wrong_positions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(step: BoundStep, total: int) -> None:
        if total > 1 and step.positions[0] > 10:
            step.positions[1:total] += 9

    fill_wrongly(monkeypatch, change)
    node = difference(capsys, *SNAPSHOTS, *SAMPLED, n=80)["node"]
    assert (node["op"], node["name"], node["row"]) == ("input", "positions", 1)
    assert node["largest"] == 9 and node["position"] > 11


def test_a_prompt_that_is_evaluated_wrongly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(step: BoundStep, total: int) -> None:
        if total == 6:
            step.tokens[5] = 300

    fill_wrongly(monkeypatch, change)
    found = difference(capsys, *SNAPSHOTS)
    assert (found["index"], found["position"], found["round"]) == (0, 6, 0)
    node = found["node"]
    assert (node["op"], node["name"], node["row"], node["tokens"]) == ("input", "tokens", 5, 6)


def test_a_choice_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_wrongly(monkeypatch, 20)
    found = difference(capsys)
    assert (found["cause"], found["position"]) == ("choice", 20)
    assert found["state"] is found["node"] is None
    assert found["drafted"]["token"] == found["plain"]["token"] + 1
    assert found["logits_largest_difference"] == 0


def test_a_session_that_holds_other_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = HybridMemory._commit

    def wrong(self: HybridMemory, seq: int, n: int) -> None:
        keeps_more = self._length[seq] > 11 and n < self._pending[seq]
        commit(self, seq, n + keeps_more)

    monkeypatch.setattr(HybridMemory, "_commit", wrong)
    found = difference(capsys, *SNAPSHOTS, *SAMPLED, "--draft-max", 2)
    assert found["cause"] == "tokens" and 0 < found["cause_round"] < found["round"]


@pytest.mark.parametrize("always", [True, False])
def test_logits_that_no_node_explains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """Changed after the run, in every session or in the recorded one alone."""
    where = Sequences if always else Recorder
    verify = where.verify

    def wrong(self: Sequences, *arguments: Any, **options: Any) -> Pass:
        found = verify(self, *arguments, **options)
        if self.length() > 12:
            found.logits[0] = -found.logits[0]
        return found

    monkeypatch.setattr(where, "verify", wrong)
    found = difference(capsys)
    assert (found["cause"], found["repeats"]) == ("unknown", always)


def test_near_ties_have_a_bound(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    perturb(monkeypatch, "blk.2.conv_act", 1, 5.0)
    for bound in (0.0, 100.0):
        found = difference(capsys, *SNAPSHOTS, "--near-tie", bound, n=4)
        assert found["near_tie"] == (found["top2_gap"] < bound) == (bound > 0)
        assert found["near_tie_bound"] == bound


def test_the_report_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    perturb(monkeypatch, "blk.2.conv_act", 1, 5.0)
    arguments = ("-p", PROMPT, "-n", 4, *SNAPSHOTS, "--device", DEVICE)
    outcome = run_cli(capsys, "spec", "check", DEMO, *arguments)
    found = difference(capsys, *SNAPSHOTS, n=4)
    lines = outcome.out.splitlines()
    assert outcome.code == 1 and outcome.err == ""
    assert lines[0].startswith(
        f"differs at token {found['index']}, position {found['position']}: "
        f"plain {found['plain']['token']} {found['plain']['text']!r}, with drafts "
    )
    assert lines[-1].endswith(
        f"first differing node: silu blk.2.conv_act in the pass of {found['node']['tokens']} "
        f"tokens, row {found['node']['row']}, max difference 5"
    )


def test_tolerance_covers_small_differences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    perturb(monkeypatch, "blk.2.conv_act", 1, 5.0)
    found = difference(capsys, *SNAPSHOTS, "--tolerance", 1e3, n=4)
    assert (found["cause"], found["node"], found["repeats"]) == ("unknown", None, True)


def test_the_example_of_the_page(tmp_path: Path) -> None:
    """Its numbers are those of one instruction set; all else of the output is the page's."""
    page = (ROOT / "docs/debugging.md").read_text().split("## Finding where drafts go wrong")[1]
    code = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    command, output = re.findall(r"^```\n\$ python late.py (.*?)\n(.*?)^```$", page, re.M | re.S)[0]
    (tmp_path / "late.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "late.py", *shlex.split(command), "--device", DEVICE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    fractions = re.compile(r"\d+\.\d+")
    assert (done.returncode, done.stderr) == (1, "")
    assert fractions.sub("#", done.stdout) == fractions.sub("#", output)


def test_logits_show_what_tokens_hide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(step: BoundStep, total: int) -> None:
        if total > 1 and step.positions[0] == 20:
            step.positions[total - 1] -= 1

    fill_wrongly(monkeypatch, change)
    assert check(capsys, *SNAPSHOTS)["equal"]
    found = difference(capsys, *SNAPSHOTS, "--logits")
    assert found["plain"]["token"] == found["drafted"]["token"]
    assert found["logits_largest_difference"] > 0
    assert (found["node"]["name"], found["node"]["largest"]) == ("positions", 1)


@pytest.mark.parametrize("strategy", ["replay", "snapshots"])
def test_captured_rows_are_those_of_single_tokens(strategy: str) -> None:
    model, tokens = demo(DEVICE), [5, 7, 11, 300]
    plan = model.plan_session(32, n_rs_seq=4, rollback=strategy)
    several = Sequences(model, plan, CapturingRunner)
    one = Sequences(model, model.plan_session(32), CapturingRunner)
    assert isinstance(several.runner, CapturingRunner) and isinstance(one.runner, CapturingRunner)
    for session in (several, one):
        session.prefill([1, 2, 3])
    found = several.runner.capture(lambda: several.verify([(0, tokens)]), lambda n: slice(0, n))
    assert found.total == 4 and len(found.nodes) > 100
    for i, token in enumerate(tokens):
        alone = one.runner.capture(lambda token=token: one.decode(token), lambda n: slice(0, n))
        assert alone.total == 1
        common = found.nodes.keys() & alone.nodes.keys()
        assert len(common) == len(found.nodes)
        for key in common:
            row = found.nodes[key].stored[i]
            assert row.tobytes() == alone.nodes[key].stored[0].tobytes(), key
    several.commit(0, 4)
    np.testing.assert_array_equal(several.decode(9), one.decode(9))


@pytest.mark.parametrize(
    "options",
    [
        ("-p", "a", "--spec", "none"),
        ("-p", "a", "--spec", "no-such"),
        ("-p", "a", "--tokens", "1"),
        (),
        ("-p", "a", "--temp", "-1"),
        ("-p", "a", "--near-tie", "-1"),
        ("-p", "a", "--rollback", "undo"),
        ("-p", "a", "--spec", "draft"),
        ("-p", "a", "--cache-type-k", "i8"),
        ("-p", "a", "--seed", "-1"),
    ],
    ids=lambda o: " ".join(o) or "nothing",
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    outcome = run_cli(capsys, "spec", "check", "no-such-model.gguf", *options)
    assert outcome.is_short_error(2), outcome


def test_bad_files_and_prompts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ("--device", DEVICE)
    short = run_cli(capsys, "spec", "check", DEMO, "-p", PROMPT, "-c", 3, *options)
    assert short.is_short_error(1) and "larger context" in short.err
    monkeypatch.undo()
    missing = run_cli(capsys, "spec", "check", tmp_path / "none.gguf", "-p", "a", *options)
    assert missing.is_short_error(1) and "no such file" in missing.err
