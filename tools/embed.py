"""`riverrun embed`: embeddings of texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..engine.embedding_options import EmbeddingOptions
from ..graph.fields import option
from .files import piped, read_input, read_text
from .loading import Loading, load_asked
from .misuse import misuse
from .options import Json
from .parameters import Offer, command

if TYPE_CHECKING:
    import numpy as np

    from ..engine import Model


@dataclass(frozen=True)
class Texts:
    """What to embed."""

    texts: tuple[str, ...] = option(
        (),
        "-p",
        "--prompt",
        metavar="TEXT",
        help="Text to embed; repeatable.",
        repeatable=True,
        read=tuple,
    )
    file: Path | None = option(
        None,
        "-f",
        "--file",
        metavar="FILE",
        help="File of texts, UTF-8, one a line; empty lines are left out.",
    )

    def found(self) -> list[str]:
        """All texts: those of -p, then the file's lines; without either, those of what is piped
        in. Raises typer.BadParameter for none and for an empty one, RequestError for a file that
        cannot be read."""
        if "" in self.texts:
            raise misuse("expected some text, got none", "-p")
        found = list(self.texts)
        if self.file is not None:
            found += _lines(read_text(self.file, "-f"))
        elif not found and piped():
            found += _lines(read_input("standard input"))
        if not found:
            raise misuse("give a text, got none", "-p", "-f")
        return found


@command
def embed(
    texts: Texts,
    options: EmbeddingOptions,
    loading: Annotated[Loading, Offer(without=("draft_head",))],
    as_json: Json = False,
) -> None:
    """Print the embedding of each text: the rows of its tokens after the final norm, pooled.

    A line of numbers for each text; with --pooling none one for each token, and an empty line
    between texts. With --json one object, the one of OpenAI's embeddings."""
    from ..engine.embedding import default_pooling, text_ids

    listed = texts.found()
    model = load_asked(loading)
    pooling = options.pooling or default_pooling(model)
    prompts = [text_ids(model, text, i) for i, text in enumerate(listed)]
    vectors = model.embed(prompts, pooling=pooling, normalize=options.normalize)
    if as_json:
        print(json.dumps(_object(model, pooling, vectors, sum(map(len, prompts)))))
    else:
        between = "\n\n" if pooling == "none" else "\n"
        print(between.join(_shown(vector) for vector in vectors))


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _shown(vector: np.ndarray) -> str:
    """Rows of numbers; nine digits tell any two f32 apart."""
    import numpy as np

    rows = np.atleast_2d(vector).tolist()
    return "\n".join(" ".join(f"{value:.9g}" for value in row) for row in rows)


def _object(
    model: Model, pooling: str, vectors: np.ndarray | list[np.ndarray], tokens: int
) -> dict[str, Any]:
    """The response of OpenAI's embeddings, and what made it."""
    data = [
        {"object": "embedding", "index": i, "embedding": vector.tolist()}
        for i, vector in enumerate(vectors)
    ]
    return {
        "object": "list",
        "data": data,
        "model": model.name,
        "device": model.device,
        "pooling": pooling,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
