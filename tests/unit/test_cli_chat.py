"""`riverrun chat`: piped, typed, at a terminal; and messages by `riverrun run`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import DEVICE, LIMIT, Outcome, feed, run_cli, start_cli
from demo import demo, loaded_once
from paths import DEMO
from riverrun.tools.chat_commands import COMMANDS
from tiny_models import llama

BASE = ("--device", DEVICE, "-c", 512)
# Some lines of code, so that answers have tokens.
CODE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
Talk = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_once(monkeypatch, DEVICE)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "code.jinja"
    path.write_text(CODE)
    return path


@pytest.fixture
def say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: Path
) -> Talk:
    """A chat over these lines of standard input."""

    def run(*lines: str, options: tuple[object, ...] = (), terminal: bool = False) -> Outcome:
        text = "".join(f"{line}\n" for line in lines)
        feed(monkeypatch, text.encode("utf-8", "surrogateescape"), terminal)
        plain = ("--temp", 0, "-n", 6, "--chat-template-file", template)
        return run_cli(capsys, "chat", DEMO, *BASE, *plain, *options)

    return run


def typed(say: Talk, *lines: str, options: tuple[object, ...] = ()) -> Outcome:
    """A chat at what says that it is a terminal."""
    return say(*lines, options=options, terminal=True)


def answers(messages: list[str], system: str = "", n: int = 6, **options: Any) -> list[str]:
    """What the model answers to these, each in its turn."""
    chat: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    found = []
    for message in messages:
        chat.append({"role": "user", "content": message})
        options = {"temperature": 0, "chat_template": CODE, "n_ctx": 512, **options}
        found.append(demo(DEVICE).chat(chat, n, **options).result.text)
        chat.append({"role": "assistant", "content": found[-1]})
    return found


def test_each_line_is_a_message_and_its_answer_alone_is_printed(say: Talk) -> None:
    lines = ["def add(a, b):", "", "/help is no command here", "import os"]
    outcome = say(*lines)
    want = answers([line for line in lines if line])
    assert (outcome.code, outcome.out, outcome.err) == (0, "".join(f"{a}\n" for a in want), "")


def test_the_system_message_is_in_front(say: Talk) -> None:
    outcome = say("def add(a, b):", options=("--system", "import numpy as np"))
    assert outcome.out == answers(["def add(a, b):"], "import numpy as np")[0] + "\n"
    assert outcome.out != answers(["def add(a, b):"])[0] + "\n"


def test_drafts_change_nothing(say: Talk) -> None:
    lines = ["def add(a, b):", "def add(a, b):"]
    plain = say(*lines, options=("-n", 8))
    drafted = say(*lines, options=("-n", 8, "--spec", "ngram-mod,mtp"))
    assert drafted.out == plain.out and "rollback" in drafted.err


def test_a_line_that_is_no_text(say: Talk) -> None:
    outcome = say("def", "\udcff")
    assert outcome.code == 1
    assert "standard input, line 2: byte 0 is not UTF-8" in outcome.err


def test_a_message_that_does_not_fit_ends_a_pipe(say: Talk) -> None:
    outcome = say("x = 1 " * 900)
    assert outcome.is_short_error(1) and "do not fit in a context of 512" in outcome.err


def test_no_messages(say: Talk) -> None:
    assert say() == Outcome(0, "", "")


def test_a_model_without_a_template(tmp_path: Path, say: Talk, capsys: Any) -> None:
    file = llama()
    file.vocab = "gpt2"
    path = file.write(tmp_path / "base.gguf")
    outcome = run_cli(capsys, "chat", path, "--device", DEVICE)
    assert outcome.is_short_error(1)
    assert "no chat template" in outcome.err and "(--chat-template-file ...)" in outcome.err


WRONG = {
    "variables": (("--chat-template-kwargs", "[1]"), "expected a JSON object"),
    "json": (("--chat-template-kwargs", "{"), "expected a JSON object"),
    "no-template": (("--chat-template-file", "readme"), "expected a Jinja template"),
    "temperature": (("--temp", -1), "temperature"),
    "count": (("-n", -2), "-n"),
}


@pytest.mark.parametrize("case", WRONG)
def test_usage_errors(
    case: str, say: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, words = WRONG[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme").write_text("no marks")
    outcome = say("x", options=options)
    assert outcome.is_short_error(2) and words in outcome.err


def test_variables_reach_the_template(say: Talk, template: Path) -> None:
    template.write_text("{{ enable_thinking }}{{ raise_exception(flags.a) }}")
    outcome = say("x", options=("--no-think", "--chat-template-kwargs", '{"flags": {"a": "b4"}}'))
    assert outcome.is_short_error(1) and outcome.err.rstrip().endswith("messages: b4")


def test_typed_messages_of_several_lines(say: Talk) -> None:
    outcome = typed(say, "def f(a,\\", "b):", '"""def g(', "c):", '"""')
    want = answers(["def f(a,\nb):", "def g(\nc):"])
    assert outcome.out == "".join(f"{a}\n" for a in want)


def test_retry_undo_and_clear(say: Talk) -> None:
    first, second = answers(["def f(x):", "y = 2"])
    outcome = typed(say, "def f(x):", "y = 2", "/retry", "/undo", "y = 2", "/clear", "def f(x):")
    assert outcome.out == "".join(f"{a}\n" for a in (first, second, second, second, first))
    assert "(2 messages are left)" in outcome.err


def test_set(say: Talk) -> None:
    outcome = typed(
        say, "/set n 3", "/set top-k 5", "/set seed -1", "/set stop ):", "/set", "def f(x):"
    )
    assert outcome.out == answers(["def f(x):"], n=3, stop="):")[0] + "\n"
    shown = outcome.err.replace("> ", "").splitlines()
    for line in ("n 3", "top_k 5", "seed None", "stop ('):',)", "temperature 0.0"):
        assert line in shown
    assert "(ended after 3 tokens: -n, or /set n)" in shown


REFUSED = {
    "/sett n 3": "/sett is no command",
    "/set warmth 3": "there is no 'warmth'",
    "/set temp cold": "/set temp: expected a number, got 'cold'",
    "/set temp -1": "/set temp: expected a finite number >= 0",
    "/set top_k 1.5": "expected a number, got '1.5'",
    "/set n -2": "/set n: expected an integer in -1",
    "/set n": "/set n: expected a value",
    "/set ignore-eos yes": "expected on or off",
    "/set logit_bias x": "expected ID=VALUE",
    "/set logit_bias 999999=1": "expected token ids",
    "/save": "/save: expected a file",
    "/load": "/load: expected a file",
    "/load no/file.json": "no such file",
    "/undo": "no message of yours",
    "/retry": "no message of yours",
    "x " * 2000: "do not fit",
}


def test_what_is_wrong_is_told_and_the_chat_goes_on(say: Talk) -> None:
    outcome = typed(say, *REFUSED, "def f(x):")
    assert (outcome.code, outcome.out) == (0, answers(["def f(x):"])[0] + "\n")
    assert [words for words in REFUSED.values() if words not in outcome.err] == []


def test_save_and_load(say: Talk, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    first = typed(say, "/system import re", "def f(x):", f"/save {path}")
    kept = json.loads(path.read_text())["messages"]
    assert [m["role"] for m in kept] == ["system", "user", "assistant"]
    assert kept[2]["content"] + "\n" == first.out
    again = typed(say, f"/load {path}", "y = 2", "/system none", "/save " + str(path))
    assert again.out == answers(["def f(x):", "y = 2"], "import re")[1] + "\n"
    assert [m["role"] for m in json.loads(path.read_text())["messages"]][:1] == ["user"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "got no JSON"),
        ("[" * 100000, "got no JSON"),
        ('{"a": 1}', "messages: expected a list of dicts, got NoneType"),
        ('[{"content": "x"}]', "expected a role"),
    ],
)
def test_files_that_hold_no_chat(text: str, words: str, say: Talk, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    outcome = typed(say, f"/load {path}")
    assert f"{path}: " in outcome.err and words in outcome.err


def test_stats_tell_what_the_session_kept(say: Talk) -> None:
    outcome = typed(say, "/stats", "def f(x):", "y = 2", "/stats", "/exit", "not heard")
    assert "0 messages, 0 answers; the context holds 0 of 512 tokens" in outcome.err
    kept = re.search(r"(\d+) of the prompt's tokens were there", outcome.err)
    assert kept and int(kept[1]) > len(demo(DEVICE).tokenize("def f(x):\n"))
    assert "4 messages, 2 answers" in outcome.err and outcome.out.count("\n") >= 2


def test_help_names_every_command(say: Talk) -> None:
    shown = typed(say, "/help").err
    assert [name for name in COMMANDS if f"/{name}" not in shown] == []


def test_a_full_context_is_told(say: Talk) -> None:
    outcome = typed(say, "def f(x):", options=("-c", 32, "-n", -1, "--ignore-eos"))
    assert "(the context of 32 tokens is full: " in outcome.err


def test_run_answers_a_message(capsys: pytest.CaptureFixture[str], template: Path) -> None:
    greedy = ("run", DEMO, *BASE, "--temp", 0, "-n", 6)
    asked = ("-p", "def add(a, b):", "--chat-template-file", template)
    outcome = run_cli(capsys, *greedy, *asked)
    want = answers(["def add(a, b):"])[0]
    assert (outcome.code, outcome.out) == (0, want + "\n")
    assert json.loads(run_cli(capsys, *greedy, *asked, "--chat", "--json").out)["text"] == want
    own = run_cli(capsys, *greedy, "-p", "import", "--chat").out
    assert own == answers(["import"], chat_template=None)[0] + "\n"
    tokens = run_cli(capsys, "run", "--tokens", "1,2", "--chat")
    assert tokens.is_short_error(2) and "--tokens" in tokens.err


class Terminal:
    """A chat at a terminal of its own: what is typed, and what is shown."""

    def __init__(self, *options: object) -> None:
        self.master, slave = pty.openpty()
        arguments = ("chat", DEMO, *BASE, "--temp", 0, *options)
        ends = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.started = start_cli(*arguments, **ends, start_new_session=True)
        self.process = self.started.__enter__()
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.started.__exit__(None, None, None)
        os.close(self.master)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt_prompt(self) -> None:
        """Ctrl-C at the next prompt, which readline shows before it listens for signals."""
        self.until("> ")
        time.sleep(0.5)
        self.process.send_signal(signal.SIGINT)

    def until(self, words: str) -> str:
        """What is shown up to these words."""
        deadline = time.monotonic() + LIMIT
        while words not in self.shown:
            assert time.monotonic() < deadline, (words, self.shown)
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.master, 4096).decode(errors="replace")
                except OSError:
                    raise AssertionError((words, self.shown)) from None
        found, _, self.shown = self.shown.partition(words)
        return found


def test_interrupts_at_a_terminal(template: Path) -> None:
    endless = ("--ignore-eos", "-c", 4096, "--chat-template-file", template)
    with Terminal(*endless) as terminal:
        terminal.until("> ")
        terminal.type("import os\n")
        terminal.until("import os\r\n")
        terminal.until("\r\n")  # some of the answer is there
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("> ")
        terminal.type("/stats\n")
        terminal.until("2 messages, 1 answers")
        terminal.interrupt_prompt()
        terminal.until("Ctrl-C again ends")
        terminal.interrupt_prompt()
        assert terminal.process.wait(LIMIT) == 130
