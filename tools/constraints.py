"""Options that say what generated text must look like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..graph.fields import option
from .files import read_text
from .misuse import misuse, usage_errors


@dataclass(frozen=True)
class Constraining:
    """What the text must conform to: one of these at most."""

    json_schema: str | None = option(
        None,
        "--json-schema",
        metavar="SCHEMA",
        help="The text is JSON that fits this schema.",
    )
    regex: str | None = option(
        None,
        "--regex",
        metavar="REGEX",
        help="The text matches it from start to end.",
    )
    grammar: str | None = option(
        None,
        "--grammar",
        metavar="TEXT",
        help="The text follows this grammar.",
    )
    grammar_file: Path | None = option(
        None,
        "--grammar-file",
        metavar="FILE",
        help="The same, from a file: Lark or GBNF.",
    )

    def asked(self) -> tuple[str, str] | None:
        """Kind and source of the one constraint that was given, None without one.

        Raises typer.BadParameter for several, for a source that is wrong by itself and for a file
        that is no text; RequestError for a file that cannot be read."""
        from ..engine.constraints.kinds import check_source
        from ..engine.constraints.library import llguidance

        given = {
            "--json-schema": ("json_schema", self.json_schema),
            "--regex": ("regex", self.regex),
            "--grammar": ("grammar", self.grammar),
            "--grammar-file": ("grammar", self.grammar_file),
        }
        named = {option: (kind, source) for option, (kind, source) in given.items() if source}
        if len(named) > 1:
            raise misuse(f"give one of them, got {', '.join(named)}", *named)
        for label, (kind, source) in named.items():
            text = read_text(source, label) if isinstance(source, Path) else str(source)
            llguidance()
            with usage_errors(label):
                check_source(kind, text)
            return kind, text
        return None
