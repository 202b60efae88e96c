"""The `riverrun` command: its subcommands, and the boundary where errors become exit codes."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from .. import __version__
from ..graph.errors import RiverrunError
from .bench import bench
from .bench_spec import bench_spec
from .devices import devices
from .graph import graph
from .messages import complain, note, silence
from .perplexity import perplexity
from .run import run
from .spec_check import check as spec_check
from .test_ops import test_ops

OK, FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 128 + 2, 128 + 13
# typer exports only this leaf of its tree of usage errors.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """Commands of one word, and of two: `bench spec` is one beside `bench MODEL`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first words name, and the words that remain."""
        two = " ".join(args[:2])
        if two in self.commands:
            return two, self.commands[two], args[2:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="riverrun",
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _function in (
    ("run", run),
    ("devices", devices),
    ("bench", bench),
    ("bench spec", bench_spec),
    ("perplexity", perplexity),
    ("graph", graph),
):
    app.command(_name)(_function)
app.command("test-ops")(test_ops)
spec = typer.Typer(rich_markup_mode=None, help="Look into speculative decoding.")
spec.command("check")(spec_check)
app.add_typer(spec, name="spec")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"riverrun {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """A static tensor-graph runtime for language models: GGUF in, text out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code: 0, 1 for bad files and run-time errors, 2 for usage
    errors, 130 after Ctrl-C, 141 when the reader of standard output went away."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = _dispatch(list(sys.argv[1:] if argv is None else argv))
            if sys.stdout is not None:
                sys.stdout.flush()
        except BaseException as error:
            code = _report(error)
    return code


def _dispatch(arguments: list[str]) -> int:
    # Not command.main(): that catches interrupts and broken pipes before they reach _report.
    command = get_command(app)
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
    if isinstance(error, (RiverrunError, OSError)):
        return str(error)
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}; use a smaller context (-c) or a smaller model"
    detail = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"internal error: {detail}\nSet RIVERRUN_DEBUG=1 for the traceback, and report it."


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    note(f"riverrun: warning: {message}")


if __name__ == "__main__":
    sys.exit(main())
