"""What a caller may ask of an embedding."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.fields import check_fields, one_of, option

KINDS = ("mean", "last", "cls", "none")  # of pooling; embedding.py says what they are


@dataclass(frozen=True)
class EmbeddingOptions:
    """pooling: "mean" of all tokens' rows, that of the "last" token or of the first ("cls"), or
    "none" for all rows; None for what the file's metadata says, else mean. normalize: divide each
    vector by its Euclidean length. Raises RequestError for what is none of these."""

    pooling: str | None = option(
        None,
        "--pooling",
        metavar="KIND",
        help=f"How rows of tokens become one vector: {', '.join(KINDS)}.",
        shown="what the model's file says, else mean",
        check=one_of(KINDS),
    )
    normalize: bool = option(True, "--raw", help="Leave vectors at their own lengths.")

    def __post_init__(self) -> None:
        check_fields(self)
