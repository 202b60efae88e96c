"""`riverrun tokenize` and `riverrun detokenize`: from text to tokens and back, by a model file's
vocabulary."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ..graph.fields import option
from .files import STANDARD_INPUT, piped, read_input, read_text
from .loading import Loading
from .messages import note
from .misuse import misuse
from .options import MOST, Json, integers
from .parameters import REQUIRED, Offer, command

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

IDS = "ID,ID,..."
Ids: TypeAlias = Annotated[str, typer.Argument(metavar=IDS, help="Token ids.")]
Special: TypeAlias = Annotated[
    bool, typer.Option("--special", help="Show control tokens, which are no text.")
]
File = Offer(only=("model", "normalize"), changed={"model": {"absent": REQUIRED, "shown": ""}})
Vocabulary = Offer(only=("model",), changed=File.changed)


@dataclass(frozen=True)
class Source:
    """A text and how to read it."""

    text: str | None = option(
        None,
        metavar="TEXT",
        help="Text; -: standard input, which is also read when there is neither TEXT nor -f.",
    )
    file: Path | None = option(None, "-f", "--file", metavar="FILE", help="Text file, UTF-8.")
    add_special: bool = option(
        True, "--no-bos", help="Without the tokens that the model wants around a text."
    )
    parse_special: bool = option(
        True, "--no-parse-special", help="Control tokens that the text spells out are text."
    )

    def read(self) -> str:
        """The text, to the last line break. Raises typer.BadParameter unless there is one,
        RequestError for a file that cannot be read."""
        if self.file is not None:
            if self.text is not None:
                raise misuse("give one of them, got both", "TEXT", "-f")
            return read_text(self.file, "-f")
        if self.text is not None and self.text != STANDARD_INPUT:
            return self.text
        if self.text is None and not piped():
            raise misuse("give one of them, got neither", "TEXT", "-f")
        return read_input("TEXT")


@command
def tokenize(
    loading: Annotated[Loading, File],
    source: Source,
    as_json: Json = False,
) -> None:
    """Show the tokens of a text, an id and what it stands for in each line."""
    text = source.read()
    tokenizer = _open(loading)
    ids = tokenizer.encode(text, source.add_special, source.parse_special)
    if as_json:
        pieces = [_piece(tokenizer, token) for token in ids]
        print(json.dumps({"tokens": ids, "pieces": pieces}))
        return
    for token in ids:
        print(f"{token:>7}  {_shown(_piece(tokenizer, token))}")
    note(f"{len(ids)} tokens")


@command
def detokenize(
    loading: Annotated[Loading, Vocabulary],
    ids: Ids,
    special: Special = False,
    as_json: Json = False,
) -> None:
    """Show the text of tokens.

    Bytes that are not UTF-8 become U+FFFD."""
    tokens = integers(IDS, ids, least=-MOST) if ids else []
    text = _open(loading).decode(tokens, special)
    print(json.dumps({"text": text}) if as_json else text)


def _open(loading: Loading) -> Tokenizer:
    from ..models.load import open_tokenizer

    assert loading.model is not None
    return open_tokenizer(loading.model, loading.normalize)


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """What a token stands for: text, or bytes where they are no whole characters."""
    raw = tokenizer.token_bytes(token, special=True)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)


def _shown(piece: str | list[int]) -> str:
    return repr(piece) if isinstance(piece, str) else " ".join(f"<0x{byte:02X}>" for byte in piece)
