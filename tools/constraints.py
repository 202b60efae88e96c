"""Options that say what generated text must look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Option = typer.Option
JsonSchema: TypeAlias = Annotated[
    str | None,
    Option("--json-schema", metavar="SCHEMA", help="The text is JSON that fits this schema."),
]
Regex: TypeAlias = Annotated[
    str | None, Option("--regex", metavar="REGEX", help="The text matches it from start to end.")
]
Grammar: TypeAlias = Annotated[
    str | None, Option("--grammar", metavar="TEXT", help="The text follows this grammar.")
]
GrammarFile: TypeAlias = Annotated[
    Path | None,
    Option("--grammar-file", metavar="FILE", help="The same, from a file: Lark or GBNF."),
]


def asked_constraint(
    json_schema: str | None, regex: str | None, grammar: str | None, grammar_file: Path | None
) -> tuple[str, str] | None:
    """Kind and source of the one constraint that was given, None without one.

    Raises typer.BadParameter for several, OSError for a file that cannot be read."""
    given = {
        "--json-schema": ("json_schema", json_schema),
        "--regex": ("regex", regex),
        "--grammar": ("grammar", grammar),
        "--grammar-file": ("grammar", grammar_file),
    }
    named = {option: (kind, source) for option, (kind, source) in given.items() if source}
    if len(named) > 1:
        raise typer.BadParameter(f"give one of them, got {', '.join(named)}")
    for kind, source in named.values():
        return kind, source.read_text() if isinstance(source, Path) else str(source)
    return None
