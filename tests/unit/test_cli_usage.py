"""Every usage error names the command and the option or argument that it is about."""

from __future__ import annotations

import re

import pytest
from cli import run_cli
from paths import ROOT
from riverrun.graph.errors import ModelError, RequestError
from riverrun.tools.misuse import misuse, usage_errors
from typer import BadParameter

RUN = ("run", "-p", "x")
BY_COMMAND = {
    "unknown drafter": ((*RUN, "--spec", "fancy"), "'--spec'", "drafter 'fancy'"),
    "none and another": ((*RUN, "--spec", "none,mtp"), "'--spec'", "drafter 'none'"),
    "drafter twice": ((*RUN, "--spec", "mtp,mtp"), "'--spec'", "named once"),
    "drafter to check": (("spec", "check", "-p", "x", "--spec", "fancy"), "'--spec'", "'fancy'"),
    "drafter to measure": (("bench", "spec", "--spec", "fancy"), "'--spec'", "drafter 'fancy'"),
    "bounds of drafts": (
        (*RUN, "--spec", "mtp", "--draft-min", 9, "--draft-max", 3),
        "'--draft-min'",
        "at most draft_max, 3, got 9",
    ),
    "rollback": ((*RUN, "--rollback", "back"), "'--rollback'", "'back'"),
    "rollback to measure": (("bench", "spec", "--rollback", "back"), "'--rollback'", "'back'"),
    "op": (("test-ops", "--op", "rms_nrm"), "'--op'", "rms_norm"),
    "op to count": (("test-ops", "--op", "rms_nrm", "--support"), "'--op'", "rms_norm"),
    "case": (("test-ops", "--op", "abs", "--case", "ab"), "'--case'", "'ab'"),
    "backend": (("test-ops", "--backend", "cqu"), "'--backend'", "near it: "),
    "two constraints": (
        (*RUN, "--json-schema", "{}", "--regex", "a"),
        "'--json-schema' / '--regex'",
        "give one of them",
    ),
    "action": (("models", "forget"), "'list|remove'", "got 'forget'"),
    "models to remove": (("models", "remove"), "'NAME'", "the names of models"),
    "key": (("inspect", "m.gguf", "k"), "'KEY'", "needs --metadata"),
    "no prompt": (("run",), "'-p' / '-f' / '--tokens'", "got neither"),
    "type": (("quantize", "in.gguf", "out.gguf", "q9"), "'TYPE'", "'q9'"),
    "shape": (("synth", "nothing", "q8_0", "out.gguf"), "'SHAPE'", "'nothing'"),
    "host": (("serve", "--host", ""), "'--host'", "an address or a name"),
    "key to show": (("serve", "--api-key", "a", "--api-key", ""), "'--api-key'", "not empty"),
    "count": (("run", "-n", "many"), "'-n' / '--n-predict'", "integer"),
}


@pytest.mark.parametrize("case", BY_COMMAND)
def test_the_option_is_named(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.tools.run.piped", lambda: False)
    arguments, names, words = BY_COMMAND[case]
    outcome = run_cli(capsys, *arguments)
    assert outcome.is_short_error(2), outcome
    assert f"Invalid value for {names}: " in outcome.err and words in outcome.err


@pytest.mark.parametrize("arguments", [("run", "-p"), ("bench", "spec", "-n"), ("run", "--temp")])
def test_an_option_without_its_value(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, *arguments)
    assert outcome.is_short_error(2), outcome
    *command, option = arguments
    head = f"riverrun {' '.join(command)}: error: Option '{option}' requires an argument"
    assert outcome.err.startswith(head)
    assert outcome.err.endswith(f"Try 'riverrun {' '.join(command)} --help'.\n")


def test_errors_that_name_an_argument_name_its_option() -> None:
    of = {"top": ("-t", "--top")}
    with pytest.raises(BadParameter) as caught, usage_errors(of):
        raise RequestError("top: wrong", "top")
    assert caught.value.format_message() == "Invalid value for '-t' / '--top': top: wrong"
    for error in (RequestError("else", "bottom"), RequestError("none"), ModelError("file")):
        with pytest.raises(type(error), match=str(error)), usage_errors(of):
            raise error


def test_no_usage_error_is_made_without_a_name() -> None:
    with pytest.raises(TypeError, match="expected the option"):
        misuse("wrong")
    made = [
        path.name
        for path in (ROOT / "tools").glob("*.py")
        if re.search(r"BadParameter\(", path.read_text())
    ]
    assert made == ["misuse.py"]


def test_a_key_of_blanks_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its variable is what the message names, not an option that nobody gave."""
    monkeypatch.setenv("RIVERRUN_API_KEY", "  ")
    outcome = run_cli(capsys, "serve")
    assert outcome.is_short_error(2), outcome
    assert "'RIVERRUN_API_KEY'" in outcome.err and "blanks" in outcome.err
