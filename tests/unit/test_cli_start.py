"""How the command starts: what it imports for what, Ctrl-C from the first moment on, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from cli import LIMIT
from paths import DEMO
from riverrun.tools.dispatch import COMMANDS

# What help, versions and completion need nothing of.
HEAVY = [
    *("numpy", "tokenizers", "sentencepiece", "jinja2", "rich", "llguidance", "huggingface_hub"),
    *("google.protobuf", "cffi", "gguf", "torch", "transformers", "cupy"),
    *("riverrun._cpu", "riverrun._cuda", "riverrun.ops", "riverrun.backends"),
]
IMPORTED = """
import json, sys
from riverrun.tools.main import main
code = main(sys.argv[1:])
print(json.dumps([code, [name for name in {heavy!r} if name in sys.modules]]), file=sys.stderr)
"""
# The help of every subcommand, one after another: what is imported stays.
ALL_HELP = """
import contextlib, io, json, sys
from riverrun.tools.dispatch import COMMANDS
from riverrun.tools.main import main
found = {{}}
for name in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main([*name.split(), "--help"])
    new = [module for module in {heavy!r} if module in sys.modules]
    found[name] = [code, "Usage: riverrun " + name in shown.getvalue(), new]
print(json.dumps(found))
"""
COMPLETED = """
import atexit, sys
atexit.register(lambda: print(*(m for m in {heavy!r} if m in sys.modules), file=sys.stderr))
from riverrun.tools.main import main
sys.exit(main([]))
"""
# Ctrl-C arrives when a module is looked for, before anything in it runs.
INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from riverrun.tools.main import main
sys.exit(main(sys.argv[1:]))
"""


def python(code: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run code that heeds interrupts, also where this process ignores them."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **more},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("walk",), ()], ids=str)
def test_what_needs_no_model_imports_next_to_nothing(arguments: tuple[str, ...]) -> None:
    done = python(IMPORTED.format(heavy=HEAVY), *arguments)
    code, imported = json.loads(done.stderr.splitlines()[-1])
    assert code == (0 if arguments and arguments[0].startswith("-") else 2)
    assert imported == []


def test_help_of_subcommands_imports_next_to_nothing() -> None:
    done = python(ALL_HELP.format(heavy=HEAVY))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == list(COMMANDS)
    assert found == {name: [0, True, []] for name in COMMANDS}


@pytest.mark.parametrize(
    "name", ["typer", "riverrun.tools.dispatch", "numpy", "tokenizers", "riverrun.speculative"]
)
def test_an_interrupt_while_modules_are_imported(name: str) -> None:
    done = python(INTERRUPTED.format(name=name), "run", DEMO, "-p", "def ", "-n", 1)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "riverrun", "devices", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "cpu" in [device["name"] for device in json.loads(done.stdout)["devices"]]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("riverrun ", {"run", "inspect", "devices", "bench", "perplexity", "graph"}),
        ("riverrun inspect --", {"--tensors", "--metadata", "--json"}),
        ("riverrun run --top", {"--top-k", "--top-p"}),
    ],
)
def test_shell_completion(words: str, found: set[str]) -> None:
    parts = words.split(" ")
    done = python(
        COMPLETED.format(heavy=HEAVY),
        _RIVERRUN_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(parts) - 1),
    )
    assert done.returncode == 0 and found <= set(done.stdout.split()), done
    assert done.stderr.split() == []


def test_public_names_are_there_when_used() -> None:
    code = (
        "import sys, riverrun as rr; early = 'numpy' in sys.modules;"
        "from riverrun import *;"
        "missing = [n for n in rr.__all__ if not hasattr(rr, n)];"
        "print(early, missing, rr.Graph is Graph, rr.engine.Model is Model, hasattr(rr, 'gone'))"
    )
    assert python(code).stdout == "False [] True True False\n"
