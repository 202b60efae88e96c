"""What a session will hold, worked out before anything is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..graph import TensorSpec
from ..graph.dtype import DType, dtype
from ..graph.errors import DTypeError, Unsupported
from ..graph.fields import check_fields, integer, limited, one_of, option
from ..models.step import PAGE, Capacity, StepShape
from .buckets import MAX_TOKENS
from .memory import ROLLBACKS, RecurrentMemory, check_rollback, strategies
from .memory.pages import window_pages

if TYPE_CHECKING:
    from .model import Model

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
RECURRENT = ("conv_state.", "ssm_state.")
LOGS = ("conv_log.", "ssm_log.")
# Host memory for states along prompts unless asked for: this or, if more, room for so many of each
# sequence, so that one before the prompt's end is always among them.
KEPT_BYTES, KEPT_STATES = 256 << 20, 2
# The most that a caller may ask for; memory for less may be missing, and its bytes fit 64 bits.
MOST_CONTEXT = 1 << 24
MOST_SEQUENCES = 1 << 16
MOST_ROLLBACK = 1 << 16
MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class SessionOptions:
    """n_ctx: tokens of the longest sequence, None for the model's own up to 4096; n_seqs:
    sequences; cache_type_k, cache_type_v: element types of attention memory (f32, f16, bf16, q8_0,
    q4_0); rollback: how recurrent state forgets tokens (memory/rollback.py); n_rs_seq: the most
    tokens that it can forget, 0 for none, with rollback="snapshots" committed ones, too; program:
    "trunk", or "mtp" for the block that predicts further tokens; draft_head: logits of the draft
    head's tokens only; cache_bytes: host memory for states to which prompts may go back, 0 for
    none, None for 256 MiB or, if more, two states of each sequence; budget: bytes that
    rollback=auto may spend, a quarter of it on replay's log."""

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
    budget: int = limited(1 << 30, integer(0, MOST_BYTES))

    def __post_init__(self) -> None:
        check_rollback(self.rollback)
        for name in ("cache_type_k", "cache_type_v"):
            _cache_type(name, getattr(self, name))
        check_fields(self)


@dataclass(frozen=True)
class MemoryBytes:
    """Bytes of a session: attention pages, one live recurrent state for each sequence, what
    rollback needs beyond it on the device and in host memory; kept: one state along a prompt."""

    attention: int
    recurrent: int
    rollback: int
    host: int
    kept: int = 0

    @property
    def device(self) -> int:
        """All but host memory."""
        return self.attention + self.recurrent + self.rollback


@dataclass(frozen=True)
class SessionPlan:
    """A session before it is made: what it was asked for and what that takes."""

    options: SessionOptions
    n_ctx: int
    n_vocab: int
    capacity: Capacity
    strategy: type[RecurrentMemory]
    states: Mapping[str, TensorSpec]
    windows: Mapping[int, int]
    bytes: MemoryBytes
    why: str = ""

    @property
    def cache_bytes(self) -> int:
        """The most bytes of host memory for states along prompts."""
        asked = self.options.cache_bytes
        room = KEPT_STATES * self.options.n_seqs * self.bytes.kept
        return max(KEPT_BYTES, room) if asked is None else asked

    @property
    def summary(self) -> str:
        """One line of sizes."""
        b = self.bytes
        parts = [f"attention {mib(b.attention)}"]
        if b.recurrent:
            parts.append(f"recurrent state {mib(b.recurrent)}")
        if b.rollback or b.host:
            where = f" and {mib(b.host)} of host memory" if b.host else ""
            parts.append(
                f"rollback of {self.options.n_rs_seq} tokens ({self.strategy.name}) "
                f"{mib(b.rollback)}{where}" + (f" ({self.why})" if self.why else "")
            )
        return f"memory for {self.n_ctx} x {self.options.n_seqs} tokens: {', '.join(parts)}"


def plan_session(model: Model, options: SessionOptions) -> SessionPlan:
    """Sizes and strategy of a session. Raises RequestError for options that do not fit the model,
    Unsupported when its backend takes none of the strategies asked for. Warns of a context longer
    than the model was trained for."""
    n_ctx = check_context(options.n_ctx, model.n_ctx_train)
    trunk = options.program == "trunk"
    windows = dict(model.source.arch.windows()) if trunk else {}
    capacity = _attention_capacity(options, n_ctx, max(windows.values(), default=0))
    _check_head_sizes(model, capacity)
    names = strategies(options.rollback, options.n_rs_seq if trunk else 0, model.backend.on_host)
    found: dict[type[RecurrentMemory], SessionPlan] = {}
    refused: Unsupported | None = None
    for strategy in names:
        layout = strategy.layout(options.n_rs_seq)
        sized = replace(
            capacity, rows=options.n_seqs * layout.rows, planes=layout.planes, log=layout.log
        )
        try:
            states = model.plan(StepShape(1, 1, 1), sized, "step", options.program).states
        except Unsupported as error:
            refused = error
            continue
        if not any(name.startswith(RECURRENT) for name in states):
            sized, strategy = capacity, RecurrentMemory
        sizes = _bytes(states, options, strategy, windows, n_ctx)
        found[strategy] = SessionPlan(
            options, n_ctx, model.n_vocab, sized, strategy, states, windows, sizes
        )
        if strategy is RecurrentMemory or affordable(strategy, sizes, options.budget):
            break
    if not found:
        assert refused is not None
        raise refused
    return _with_reason(list(found.values()), options)


def affordable(strategy: type[RecurrentMemory], sizes: MemoryBytes, budget: int) -> bool:
    """Whether rollback=auto takes this strategy rather than the next one.

    Replay, as long as its log, which grows with the tokens to forget, takes no more than a
    checkpoint's copy of the state, which does not, or than a quarter of the budget; snapshots
    within the budget; a checkpoint always."""
    if strategy.name == "replay":
        return sizes.rollback <= max(sizes.recurrent, budget // 4)
    return strategy.name != "snapshots" or sizes.rollback <= budget


def _with_reason(found: Sequence[SessionPlan], options: SessionOptions) -> SessionPlan:
    """The last of the plans tried, with what kept auto from those before it."""
    chosen = found[-1]
    if len(found) == 1:
        return chosen
    others = ", ".join(f"{p.strategy.name} {mib(p.bytes.rollback)}" for p in found[:-1])
    return replace(chosen, why=f"instead of {others}")


def _attention_capacity(options: SessionOptions, n_ctx: int, window: int) -> Capacity:
    pages = -(-n_ctx // PAGE)
    near = window_pages(window, slack(options, window, n_ctx), MAX_TOKENS, n_ctx) if window else 0
    return Capacity(
        n_pages=pages * options.n_seqs,
        pages_per_seq=pages,
        rows=options.n_seqs,
        k_dtype=_cache_type("cache_type_k", options.cache_type_k),
        v_dtype=_cache_type("cache_type_v", options.cache_type_v),
        window_pages=near * options.n_seqs,
    )


def slack(options: SessionOptions, window: int, n_ctx: int) -> int:
    """Committed tokens that layers with a window can always go back by: all of them where their
    pages would be as many as those of the whole context anyway."""
    least = max(PAGE, options.n_rs_seq + 1)
    whole = window_pages(window, least, MAX_TOKENS, n_ctx) == -(-n_ctx // PAGE)
    return n_ctx if whole else least


def _bytes(
    states: Mapping[str, TensorSpec],
    options: SessionOptions,
    strategy: type[RecurrentMemory],
    windows: Mapping[int, int],
    n_ctx: int,
) -> MemoryBytes:
    attention = recurrent = rollback = kept = 0
    for name, spec in states.items():
        if name.startswith(LOGS):
            rollback += spec.nbytes
        elif name.startswith(RECURRENT):
            live = options.n_seqs * 4 * spec.shape[-1]
            recurrent += live
            rollback += spec.nbytes - live
        else:
            attention += spec.nbytes
            window = windows.get(int(name.rsplit(".", 1)[1]), 0)
            if window and slack(options, window, n_ctx) < n_ctx:
                kept += window_pages(window, 0, 1, n_ctx) * PAGE * spec.nbytes // spec.shape[0]
    kept += recurrent // options.n_seqs
    return MemoryBytes(attention, recurrent, rollback, recurrent * strategy.host_copies, kept)


def mib(n: int) -> str:
    """A number of bytes for people."""
    return f"{n / 2**20:.1f} MiB"


def check_context(n_ctx: int | None, n_ctx_train: int) -> int:
    """The context to use: asked for, or the model's own up to 4096. Warns of one longer
    than the model was trained for."""
    if n_ctx is None:
        return max(1, min(n_ctx_train or 4096, 4096))
    if 0 < n_ctx_train < n_ctx:
        warnings.warn(
            f"a context of {n_ctx} tokens is longer than the {n_ctx_train} that the model was "
            "trained for; what it says beyond them may be worse",
            RuntimeWarning,
            stacklevel=2,
        )
    return n_ctx


def _cache_type(argument: str, name: str) -> DType:
    if name not in CACHE_TYPES:
        raise DTypeError(f"{argument} should be one of {', '.join(CACHE_TYPES)}, got {name!r}")
    return dtype(name)


def _check_head_sizes(model: Model, capacity: Capacity) -> None:
    hp = model.source.arch.hp
    for argument, kind, size in (
        ("cache_type_k", capacity.k_dtype, hp.head_dim_k),
        ("cache_type_v", capacity.v_dtype, hp.head_dim_v),
    ):
        if size % kind.block:
            raise DTypeError(
                f"{argument}: {kind.name} takes head sizes that are multiples of {kind.block}, and "
                f"this model's is {size}; use f16"
            )
