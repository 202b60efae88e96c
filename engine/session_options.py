"""What a caller may ask of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.errors import DTypeError
from ..graph.fields import check_fields, integer, limited, one_of, option
from .memory.kinds import ROLLBACKS, check_rollback

if TYPE_CHECKING:
    from ..graph.dtype import DType

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
# The most that a caller may ask for: bytes of what it takes then still fit into 64 bits.
MOST_CONTEXT = 1 << 44
MOST_SEQUENCES = 1 << 16
MOST_ROLLBACK = 1 << 20
MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class SessionOptions:
    """n_ctx: tokens of the longest sequence, None for the model's own up to 4096; n_seqs:
    sequences; n_ctx_total: tokens that attention memory has pages for in all, from n_ctx on, None
    for n_ctx of each sequence; cache_type_k, cache_type_v: element types of attention memory (f32,
    f16, bf16, q8_0, q4_0); rollback: how recurrent state forgets tokens (memory/rollback.py);
    n_rs_seq: the most tokens that it can forget, 0 for none, with rollback="snapshots" committed
    ones, too; program: "trunk", or "mtp" for the block that predicts further tokens; draft_head:
    logits of the draft head's tokens only; cache_bytes: memory for states to which prompts may go
    back, on their device as long as it has room, 0 for none, None for 256 MiB or, if more, two
    states of each sequence; host_cache_bytes: host memory for texts whose pages others have taken,
    from which prompts of an engine go on all the same; budget: bytes that rollback=auto may spend,
    a quarter of it on replay's log."""

    n_ctx: int | None = option(
        None,
        "-c",
        "--ctx-size",
        metavar="CTX",
        help="Context size in tokens.",
        shown="the model's own, up to 4096",
        check=integer(1, MOST_CONTEXT, "1 or more tokens"),
    )
    n_seqs: int = limited(1, integer(1, MOST_SEQUENCES))
    n_ctx_total: int | None = option(
        None,
        "--ctx-total",
        metavar="TOKENS",
        help="Attention memory for so many tokens in all, shared by the sequences in pages of 256.",
        shown="every sequence can be full",
        check=integer(1, MOST_CONTEXT, "1 or more tokens"),
    )
    cache_type_k: str = option(
        "f16",
        "--cache-type-k",
        metavar="T",
        help="Element type of cached keys.",
        check=one_of(CACHE_TYPES),
    )
    cache_type_v: str = option(
        "f16",
        "--cache-type-v",
        metavar="T",
        help="Element type of cached values.",
        check=one_of(CACHE_TYPES),
    )
    rollback: str = option(
        "auto",
        "--rollback",
        metavar="KIND",
        help=f"How recurrent state forgets drafts: {', '.join(ROLLBACKS[:-1])}.",
        check=one_of(ROLLBACKS),
    )
    n_rs_seq: int = option(
        0,
        "--n-rs-seq",
        metavar="N",
        help="Most tokens that recurrent state can forget.",
        absent=None,
        shown="the longest draft",
        check=integer(0, MOST_ROLLBACK),
    )
    program: str = "trunk"
    draft_head: bool = False
    cache_bytes: int | None = limited(None, integer(0, MOST_BYTES))
    host_cache_bytes: int = limited(0, integer(0, MOST_BYTES))
    budget: int = limited(1 << 30, integer(0, MOST_BYTES))

    def __post_init__(self) -> None:
        check_rollback(self.rollback)
        for name in ("cache_type_k", "cache_type_v"):
            cache_type(name, getattr(self, name))
        check_fields(self)


def cache_type(argument: str, name: str) -> DType:
    """An element type of attention memory. Raises DTypeError for others, naming the argument."""
    if name not in CACHE_TYPES:
        raise DTypeError(f"{argument} should be one of {', '.join(CACHE_TYPES)}, got {name!r}")
    from ..graph.dtype import dtype

    return dtype(name)
