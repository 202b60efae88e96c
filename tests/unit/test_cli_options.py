"""One declaration of a field is an option, its help, its check and its line in the docs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from cli import run_cli
from paths import ROOT
from riverrun import _cpu
from riverrun.engine import SamplerParams
from riverrun.engine.session_options import SessionOptions
from riverrun.graph.errors import RequestError
from riverrun.graph.fields import check_fields, integer, number, one_of, option, options_of
from riverrun.speculative import Speculation
from riverrun.tools import option_docs
from riverrun.tools.dispatch import COMMANDS, function_of
from riverrun.tools.parameters import Chosen, Offer, command
from riverrun.tools.wording import in_command_words

FIELD = """    warmth: float = option(
        0.25,
        "--warmth",
        metavar="W",
        help="How warm.",
        check=number("a number < 9", lambda v: v < 9),
    )
"""
AFTER = "    min_p: float = option("


@dataclass(frozen=True)
class Checkout:
    """A tree of links whose sampler has one field more."""

    top: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python with this tree's package, in its top folder."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.top,
            env={**os.environ, "PYTHONPATH": str(self.top / "package"), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    top = tmp_path_factory.mktemp("checkout")
    package = top / "package" / "riverrun"
    subprocess.run([ROOT / "tools" / "dev_tree.sh", package.parent], check=True)
    (package / Path(_cpu.__file__).name).symlink_to(_cpu.__file__)
    for folder in ("engine", "engine/sampler"):
        (package / folder).unlink()
        (package / folder).mkdir()
        for entry in (ROOT / folder).iterdir():
            (package / folder / entry.name).symlink_to(entry)
    params = package / "engine" / "sampler" / "params.py"
    source = params.read_text()
    params.unlink()
    params.write_text(source.replace(AFTER, FIELD + AFTER))
    (top / "docs").mkdir()
    # Pages are made of records of tests, too.
    (top / "tests").symlink_to(ROOT / "tests")
    return Checkout(top)


def test_one_edit_is_an_option_with_help_and_a_check(checkout: Checkout) -> None:
    shown = checkout.run("-m", "riverrun", "run", "--help")
    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if "--warmth" in line]
    assert line.split()[:4] == ["--warmth", "W", "How", "warm."] and "0.25" in line
    refused = checkout.run("-m", "riverrun", "spec", "check", "-p", "x", "--warmth", "10")
    assert refused.returncode == 2 and refused.stdout == ""
    assert "'--warmth': warmth: expected a number < 9, got 10.0" in refused.stderr


def test_the_same_edit_is_a_check_in_python_and_a_line_of_the_docs(checkout: Checkout) -> None:
    code = "from riverrun import SamplerParams as P; print(P().warmth); P(warmth=9).validate(1)"
    done = checkout.run("-c", code)
    assert done.stdout == "0.25\n"
    assert done.stderr.splitlines()[-1].endswith(
        "RequestError: warmth: expected a number < 9, got 9"
    )
    done = checkout.run("-m", "riverrun.tools.gen_docs")
    assert done.returncode == 0, done.stderr
    page = (checkout.top / "docs" / "options.md").read_text()
    row = "| `--warmth` `W` | 0.25 | How warm. Expects a number < 9. |"
    assert page.splitlines().count(row) == 4, "run, chat, serve and spec check"


def test_the_page_of_options_is_up_to_date() -> None:
    assert (ROOT / option_docs.PAGE).read_text() == option_docs.generate(), "make docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_md_names_no_option_that_is_not_there(name: str) -> None:
    known = {
        flag
        for each in inspect.signature(
            function_of(COMMANDS[name]), eval_str=True
        ).parameters.values()
        for flag in option_docs.flags(each)
    }
    text = (ROOT / "docs" / "command.md").read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `-")]
    named = {part.split("`")[0].split()[0] for row in rows for part in row.split("`-")[1:]}
    assert {f"-{flag}" for flag in named} <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_summaries_are_what_the_functions_say(name: str) -> None:
    entry = COMMANDS[name]
    said = " ".join(inspect.cleandoc(function_of(entry).__doc__ or "").split("\n\n")[0].split())
    assert said == entry.summary


@dataclass(frozen=True)
class Kiln:
    """Fields of every kind."""

    name: str | None = option(None, metavar="NAME", help="Whose.")
    heat: int = option(7, "-h7", "--heat", help="How hot.", check=integer(0, 9))
    seed: int | None = option(None, "--seed", unset=-1, check=integer(0, 2**70, "None for any"))
    glow: bool = option(True, "--no-glow")
    parts: tuple[int, ...] = option(
        (), "--part", repeatable=True, read=lambda t: tuple(map(int, t))
    )
    kind: str = option("a", "--kind", check=one_of(("a", "b")))
    later: int = option(5, "--later", absent=None, check=integer(1, 6))


def fire(*arguments: str, offer: Offer | None = None) -> tuple[Kiln, Chosen[Kiln]]:
    """What a command with two groups of the class gets from a command line."""
    got = []
    for wanted in (Kiln, Chosen[Kiln]):

        def bake(kiln: object) -> None:
            got.append(kiln)

        bake.__annotations__["kiln"] = Annotated[wanted, offer or Offer()]
        bake.__annotations__["return"] = None
        app = typer.Typer(add_completion=False)
        app.command()(command(bake))
        typer.main.get_command(app).main(list(arguments), standalone_mode=False)
    return got[0], got[1]


def test_values_become_instances() -> None:
    assert fire()[0] == Kiln()
    given = ("me", "--heat", "3", "--seed", "4", "--no-glow", "--part", "1", "--part", "2")
    made, chosen = fire(*given, "--later", "6")
    assert made == Kiln("me", 3, 4, False, (1, 2), "a", 6) == chosen.make()
    assert fire("--seed", "-1")[0].seed is None
    assert "later" not in fire()[1].values and chosen.make(heat=8).heat == 8


def test_an_offer_leaves_out_and_changes() -> None:
    offer = Offer(without=("part",), changed={"heat": {"absent": 2}})
    assert fire(offer=offer)[0].heat == 2
    with pytest.raises(Exception, match="No such option"):
        fire("--heat", "3", offer=Offer(only=("seed",)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--heat", "10"), "heat: expected an integer in 0 .. 9, got 10"),
        (("--heat", "x"), "(?i)valid integer"),
        (("--kind", "c"), "kind: expected one of a, b, got 'c'"),
        (("--part", "y"), "invalid literal"),
        (("--seed", str(2**71)), r"\(-1 for any\)"),
    ],
)
def test_values_out_of_range_are_usage_errors(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(typer.BadParameter.__bases__[0], match=words):
        fire(*arguments)


def test_checks_of_fields_in_python() -> None:
    check_fields(Kiln())
    for field, value in (("heat", True), ("heat", 1.0), ("kind", None), ("seed", -1)):
        with pytest.raises(RequestError, match=f"^{field}: expected .*, got {value!r}"):
            check_fields(Kiln(**{field: value}))
    assert number("a number").fault(float("nan")) and not number("a number").fault(3)


@pytest.mark.parametrize("cls", [SamplerParams, SessionOptions, Speculation])
def test_every_option_of_the_engine_has_a_name_and_help(cls: type) -> None:
    found = list(options_of(cls))
    assert found and all(each.flags and each.help for _, each in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("make it with model.session(n_rs_seq=3)", "make it with --n-rs-seq 3"),
        ("load it with draft_head=N, the number", "load it with --draft-head N, the number"),
        ('or use load="read".', "or use --load read."),
        ("top_k=40; n_ctx=7.", "--top-k 40; --ctx-size 7."),
        ("use a larger context (n_ctx) or less", "use a larger context (-c) or less"),
        ("give one (draft_model); (n) stays", "give one (--draft-model); (n) stays"),
        ("shape x=4 stays", "shape x=4 stays"),
    ],
)
def test_messages_use_the_words_of_the_command(text: str, said: str) -> None:
    assert in_command_words(text) == said


NUMBERS = {
    "threads": ("-t", 99999999999),
    "context": ("-c", 10**22),
    "rollback": ("--n-rs-seq", 99999999999999),
    "count": ("-n", 10**30),
    "drafts": ("--draft-max", 257),
    "fewest drafts": ("--draft-min", 300),
    "seed": ("--seed", 2**64),
    "top-k": ("--top-k", 2**31),
    "draft head": ("--draft-head", 2**40),
    "tokens": ("--tokens", 2**40),
    "stop tokens": ("--stop-token-ids", 2**40),
    "layers": ("--gpu-layers", -3),
    "bias": ("--logit-bias", "7=nan"),
    "biased token": ("--logit-bias", "-7=1"),
    "least probability": ("--p-min", "inf"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_out_of_range(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag, value = NUMBERS[case]
    prompt = () if flag == "--tokens" else ("-p", "x")
    outcome = run_cli(capsys, "run", "no-such.gguf", *prompt, flag, value)
    assert outcome.is_short_error(2), outcome
    assert flag in outcome.err and "expected" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "-p", 10**12),
        ("bench", "-n", 10**12),
        ("bench", "-c", 10**22),
        ("bench", "spec", "-r", 10**12),
        ("bench", "spec", "--n-rs-seq", 10**12),
        ("spec", "check", "-p", "x", "--seed", 2**64),
        ("perplexity", "m.gguf", "t.txt", "-c", 10**22),
        ("graph", "-t", 10**9),
        ("test-ops", "-t", 10**9),
    ],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_numbers_out_of_range_elsewhere(
    arguments: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, *arguments)
    assert outcome.is_short_error(2) and str(arguments[-2]) in outcome.err, outcome
