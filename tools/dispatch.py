"""The subcommands, each imported when it is asked for, and the boundary where errors become exit
codes."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .exit_codes import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE
from .messages import complain, note, silence

COMPLETION = "_RIVERRUN_COMPLETE"
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
# typer exports only this leaf of its tree of usage errors.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Entry(NamedTuple):
    """A subcommand: the file of its function, and the first sentence of that function's text.
    negative: whether words such as -1 are arguments of it, not options."""

    module: str
    function: str
    summary: str
    negative: bool = False


COMMANDS = {
    "run": Entry(
        "run",
        "run",
        "Continue a prompt: the text goes to standard output as it comes, timings to standard "
        "error.",
    ),
    "inspect": Entry(
        "inspect",
        "inspect",
        "Tell what a model file holds, whether it runs here, and the memory of a context, without "
        "loading it.",
    ),
    "chat": Entry(
        "chat",
        "chat",
        "Talk to a model: answers go to standard output as they come; /help lists what can be "
        "typed besides messages.",
    ),
    "serve": Entry(
        "serve",
        "serve",
        "Serve models over HTTP, as OpenAI, llama-server, Anthropic and Ollama do, with a page to "
        "chat at /; requests that do not say get the sampling options given here.",
    ),
    "models": Entry(
        "models",
        "models",
        "List the models that were fetched from the Hugging Face Hub, or remove some of them.",
    ),
    "devices": Entry(
        "devices", "devices", "List the devices of this build and machine, best first."
    ),
    "quantize": Entry("quantize", "quantize", "Write a model file with its weights in fewer bits."),
    "synth": Entry(
        "synth",
        "synth",
        "Write a model file of a real shape with random weights, for measuring.",
    ),
    "bench": Entry(
        "bench",
        "bench",
        "Measure tokens per second of passes and of decoding, and the memory bandwidth reached.",
    ),
    "bench spec": Entry(
        "bench_spec",
        "bench_spec",
        "Measure speculative decoding against plain decoding, each figure beside a check that the "
        "tokens are the same; exit with 1 when a check fails.",
    ),
    "bench batch": Entry(
        "bench_batch",
        "bench_batch",
        "Measure tokens per second of several requests that decode at once, beside what bare "
        "passes of as many rows give in the same run, and the time that a step spends outside its "
        "passes.",
    ),
    "bench kernels": Entry(
        "bench_kernels",
        "bench_kernels",
        "Measure the processor's products with one thread, by type of weights and instruction-set "
        "level: time, cycles and instructions of a block, and the share of what the core reaches.",
    ),
    "bench serve": Entry(
        "bench_serve",
        "bench_serve",
        "Measure an OpenAI-compatible server under load: times to the first token, gaps between "
        "tokens, tokens per second; exit with 1 when a request fails.",
    ),
    "embed": Entry(
        "embed",
        "embed",
        "Print the embedding of each text: the rows of its tokens after the final norm, pooled.",
    ),
    "perplexity": Entry(
        "perplexity", "perplexity", "Cut a text into chunks and score the second half of each."
    ),
    "tokenize": Entry(
        "tokens",
        "tokenize",
        "Show the tokens of a text, an id and what it stands for in each line.",
    ),
    "detokenize": Entry("tokens", "detokenize", "Show the text of tokens.", negative=True),
    "convert": Entry("convert", "convert", "Write a GGUF file from a Hugging Face checkpoint."),
    "graph": Entry(
        "graph",
        "graph",
        "Write the graph that a session runs for a step: shapes, kernels, bytes, operations, "
        "times.",
    ),
    "test-ops": Entry(
        "test_ops",
        "test_ops",
        "Check ops on a backend against the numpy reference; exit with 1 when a case fails.",
    ),
    "spec check": Entry(
        "spec_check",
        "check",
        "Generate with and without drafts, side by side; exit with 1 at the first token that "
        "differs, after telling which state, round or node of the graph made it differ.",
    ),
}


class Commands(TyperGroup):
    """Commands of one word, and of two: `bench spec` is one beside `bench MODEL`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command of a name, None for no name of one."""
        return subcommand(name) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first words name, and the words that remain."""
        two = " ".join(args[:2])
        if two in COMMANDS:
            return two, subcommand(two), args[2:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The names with their summaries; imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


class Subcommand(TyperCommand):
    """A command whose errors name it, whatever part of a command line they are about."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What the words are; no option begins with a digit."""
        if COMMANDS[self.name or ""].negative:
            ctx.ignore_unknown_options = any(re.match(r"-\d", word) for word in args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="riverrun",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
)


def subcommand(name: str) -> Any:
    """The command of a name in COMMANDS."""
    entry = COMMANDS[name]
    alone = typer.Typer(add_completion=False, **PLAIN)
    alone.command(name, cls=Subcommand)(function_of(entry))
    made = get_command(alone)
    made.name = name
    return made


def function_of(entry: Entry) -> Callable[..., None]:
    """The function of a subcommand."""
    return getattr(import_module(f".{entry.module}", __package__), entry.function)


def _print_version(wanted: bool) -> None:
    if wanted:
        import riverrun

        print(f"riverrun {riverrun.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """A static tensor-graph runtime for language models: GGUF in, text out."""


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line; its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = _dispatch(list(arguments))
            if sys.stdout is not None:
                sys.stdout.flush()
        except BaseException as error:
            code = _report(error)
    return code


def _dispatch(arguments: list[str]) -> int:
    command = get_command(app)
    if COMPLETION in os.environ:
        command.main(arguments, "riverrun")  # answers the shell, and leaves
    # Not command.main(): that catches interrupts and broken pipes before they reach _report.
    try:
        with command.make_context("riverrun", arguments) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    return OK


def _report(error: BaseException) -> int:
    """Tell the user; the exit code. Raises what is not an error, such as SystemExit."""
    if isinstance(error, UsageError):
        return _report_usage(error)
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        silence()
        return BROKEN_PIPE
    if not isinstance(error, Exception):
        raise error
    if os.environ.get("RIVERRUN_DEBUG"):
        note("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, OSError):
        silence()
    complain(_explain(error))
    return FAILED


def _report_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "riverrun"
    message = getattr(error, "format_message", error.__str__)()
    complain(message, path, f"Try '{path} --help'.")
    return USAGE


def _explain(error: Exception) -> str:
    from ..graph.errors import RiverrunError
    from .wording import in_command_words

    if isinstance(error, RiverrunError):
        return in_command_words(str(error))
    if isinstance(error, OSError):
        return _explain_system(error)
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}; use a smaller context (-c) or a smaller model"
    detail = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"internal error: {detail}\nSet RIVERRUN_DEBUG=1 for the traceback, and report it."


def _explain_system(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {what}"
    # What has no name and takes no more bytes is where the output goes.
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)
    return f"standard output cannot be written: {what}" if full else what


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from .wording import in_command_words

    note(f"riverrun: warning: {in_command_words(str(message))}")
