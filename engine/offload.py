"""Which layers of a model run on which device.

The last layers go to the cards, the first ones stay on the processor, so that the head, the largest
product of a decode step, is on a card as soon as anything is. Several cards get consecutive layers,
in proportion to what each has free."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..backends import Backend, SplitBackend, free_bytes, is_card, open_backend
from ..backends.base import SPARE
from ..backends.debug import unwatched
from ..backends.registry import canonical, names_of
from ..graph import TensorSpec
from ..graph.errors import BackendError, RequestError
from ..models import ModelFile
from ..models.memories import MemorySpec, RecurrentSpec
from ..models.step import DRAFT_HEAD, Capacity
from .moved import PROCESSOR, Overrides, check_overrides, moved_weights, places_line
from .session_options import SessionOptions
from .session_plan import KEPT_STATES, session_capacity

AUTO = "auto"
EMBEDDING = "token_embd.weight"
HEAD = ("output.weight", "output_norm.weight", DRAFT_HEAD)


@dataclass(frozen=True)
class Offload:
    """gpu_layers: how many of the last layers run on the cards, the head counting as one more (and
    the block that predicts further tokens as another): None for all, "auto" for as many as fit
    beside a session of n_ctx tokens that can forget n_rs_seq; reserve: bytes that stay free on each
    card, for working memory and other models; n_cpu_moe: experts of the first so many layers stay
    on the processor, wherever the rest of their layers is; override_tensor: pairs of a regular
    expression and the device of the weights in whose names it is found; tell: called with a line of
    what lies where, before weights are loaded, where these two ask for something. Raises
    RequestError for what is none of these."""

    gpu_layers: int | str | None = None
    n_ctx: int | None = None
    n_rs_seq: int = 0
    reserve: int = SPARE
    n_cpu_moe: int = 0
    override_tensor: Overrides = ()
    tell: Callable[[str], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.gpu_layers is not None and self.gpu_layers != AUTO:
            _require("gpu_layers", self.gpu_layers, 0, ", or 'auto'")
        if self.n_ctx is not None:
            _require("n_ctx", self.n_ctx, 1)
        _require("n_rs_seq", self.n_rs_seq, 0)
        _require("reserve", self.reserve, 0)
        _require("n_cpu_moe", self.n_cpu_moe, 0)
        check_overrides(self.override_tensor)


def _require(name: str, value: object, least: int, also: str = "") -> None:
    """Raise RequestError unless value is a whole number from least on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(f"{name} should be {least} or more{also}, got {value!r}")


def open_for(source: ModelFile, device: str, threads: int | None, asked: Offload) -> Backend:
    """The backend for a model on a device, or split over several by layers.

    Where the device names no card, as many layers as fit (gpu_layers="auto") are none, with a
    warning. Raises BackendError for a number of layers that should go to cards there, and for
    devices that are unknown or cannot be used; RequestError for a device that is no text."""
    names = names_of(device)
    cards = [name for name in names if is_card(name)]
    moved = moved_weights(source, asked.n_cpu_moe, asked.override_tensor)
    if moved:
        return _open_moved(source, names, threads, asked, moved)
    if asked.gpu_layers is None and len(cards) < 2:
        return open_backend(",".join(names), threads)
    if not cards:
        return _without_cards(",".join(names), threads, asked)
    others = [name for name in names if not is_card(name)]
    layers = layers_of(source, asked, len(cards))
    counts = layers.counts([free_bytes(card) for card in cards], asked)
    if not sum(counts):
        return open_backend(",".join(others) or PROCESSOR, threads)
    if counts == [layers.total]:
        return open_backend(",".join([*cards, *others]), threads)
    if sum(counts) < layers.total:
        others = others or [PROCESSOR]
    parts = [unwatched(open_backend(name, threads)) for name in [*cards, *others]]
    return SplitBackend(parts, layers.homes(counts))


def _open_moved(
    source: ModelFile,
    names: Sequence[str],
    threads: int | None,
    asked: Offload,
    moved: Mapping[str, str],
) -> Backend:
    """The backend of a model of which some weights are elsewhere than their layers."""
    cards = [canonical(name) for name in names if is_card(name)]
    others = [name for name in names if not is_card(name)]
    if cards:
        layers = layers_of(source, asked, len(cards), moved)
        counts = layers.counts([free_bytes(card) for card in cards], asked)
        owners = [*cards, others[0] if others else PROCESSOR]
        places = {name: owners[at] for name, at in layers.homes(counts).items()}
    else:
        places = dict.fromkeys(source.specs, others[0])
    places |= {name: canonical(device) for name, device in moved.items()}
    wanted = {*others, *places.values()}
    devices = [n for n in dict.fromkeys([*cards, *others, *places.values()]) if n in wanted]
    parts = [unwatched(open_backend(name, threads)) for name in devices]
    if not cards:
        _check_without_cards(",".join(names), asked)
    if asked.tell is not None:
        asked.tell(places_line(source, devices, places, moved))
    if len(parts) == 1:
        return parts[0]
    return SplitBackend(parts, {name: devices.index(place) for name, place in places.items()})


def _without_cards(device: str, threads: int | None, asked: Offload) -> Backend:
    """The backend of a device that names no card, where none of the layers has to be on one."""
    backend = open_backend(device, threads)
    _check_without_cards(device, asked)
    return backend


def _check_without_cards(device: str, asked: Offload) -> None:
    if asked.gpu_layers == AUTO:
        warnings.warn(
            f"gpu_layers={AUTO!r}: device {device!r} has no card, 0 layers are on one",
            stacklevel=4,
        )
    elif asked.gpu_layers:
        raise BackendError(
            f"gpu_layers={asked.gpu_layers} puts layers on cards, and device {device!r} has none; "
            "`riverrun devices` lists what there is"
        )


class Layers:
    """What belongs to each layer of a model, and its bytes: 0 is the first, the head is the last.

    weights, states: all of the model's by name, states with the bytes of one session; blocks: the
    layer of each that belongs to one; moved: weights that take no room where their layers are."""

    def __init__(
        self,
        weights: Mapping[str, TensorSpec],
        states: Mapping[str, int],
        blocks: Mapping[str, int],
        n_cards: int = 1,
        moved: Collection[str] = (),
    ) -> None:
        self.names, self.blocks = [*weights, *states], blocks
        self.total = 2 + max(blocks.values(), default=-1)
        self.tied = "output.weight" not in weights
        self.sizes = [0] * self.total
        nbytes = {name: spec.nbytes for name, spec in weights.items()} | dict(states)
        nbytes |= dict.fromkeys(moved, 0)
        for name in self.names:
            at = self._layer(name)
            self.sizes[self.total - 1 if at is None else at] += nbytes[name]
        # Tied weights: the last card has them as the head, others may need the embedding.
        self.again = nbytes.get(EMBEDDING, 0) if self.tied and n_cards > 1 else 0

    def _layer(self, name: str) -> int | None:
        """The layer of a weight or state; None for what is wherever it is read."""
        if name in HEAD:
            return self.total - 1
        if name == EMBEDDING:
            return None if self.tied else 0
        return self.blocks.get(name)

    def counts(self, free: Sequence[int], asked: Offload) -> list[int]:
        """How many layers each card gets, in order; free: the bytes that each has."""
        room = [n - asked.reserve - self.again for n in free]
        room[-1] += self.again
        room = [max(1, n) for n in room]
        if asked.gpu_layers == AUTO:
            return self._fitting(room)
        wanted = self.total
        if isinstance(asked.gpu_layers, int):
            wanted = min(asked.gpu_layers, self.total)
        return self._spread(wanted, room)

    def _fitting(self, room: Sequence[int]) -> list[int]:
        for wanted in range(self.total, 0, -1):
            counts = self._spread(wanted, room)
            if fits(self.sizes[self.total - wanted :], room, counts):
                return counts
        return [0] * len(room)

    def _spread(self, wanted: int, room: Sequence[int]) -> list[int]:
        """In proportion, or one card after the other where only that fits."""
        sizes = self.sizes[self.total - wanted :]
        even, full = shares(sizes, room), filled(sizes, room)
        return full if fits(sizes, room, full) and not fits(sizes, room, even) else even

    def homes(self, counts: Sequence[int]) -> dict[str, int]:
        """The backend of every weight and state that belongs to a layer: cards, then another."""
        owners = [len(counts)] * (self.total - sum(counts))
        for card, count in enumerate(counts):
            owners += [card] * count
        places = {name: self._layer(name) for name in self.names}
        return {name: owners[at] for name, at in places.items() if at is not None}


def layers_of(
    source: ModelFile, asked: Offload, n_cards: int = 1, moved: Collection[str] = ()
) -> Layers:
    """The layers of a model with a session as asked for."""
    return Layers(source.specs, state_bytes(source, asked), blocks_of(source), n_cards, moved)


def blocks_of(source: ModelFile) -> dict[str, int]:
    """The layer of every weight and state that belongs to one, as the architecture declares."""
    wants = {w.name: w.layer for w in source.arch.wants() if w.layer is not None}
    found = {name: at for name, at in wants.items() if name in source.specs}
    # With replay, so that logs are among the states of layers that may have them.
    with_logs = SessionOptions(1, n_rs_seq=1, rollback="replay")
    for spec, capacity in _memories(source, with_logs):
        for layer in spec.layers:
            found |= dict.fromkeys(spec.layer_states(layer, capacity), layer)
    return found


def shares(sizes: Sequence[int], room: Sequence[int]) -> list[int]:
    """How many consecutive layers each card gets, in proportion to its room."""
    whole, counts, at, due = sum(sizes), [], 0, 0.0
    for card, free in enumerate(room):
        due += whole * free / sum(room)
        end = at
        while end < len(sizes) and (card == len(room) - 1 or sum(sizes[: end + 1]) <= due):
            end += 1
        counts.append(end - at)
        at = end
    return counts


def filled(sizes: Sequence[int], room: Sequence[int]) -> list[int]:
    """How many consecutive layers each card gets when one is filled after the other; the last one
    takes what is left."""
    counts, at = [], 0
    for card, free in enumerate(room):
        end = at
        while end < len(sizes) and (card == len(room) - 1 or sum(sizes[at : end + 1]) <= free):
            end += 1
        counts.append(end - at)
        at = end
    return counts


def fits(sizes: Sequence[int], room: Sequence[int], counts: Sequence[int]) -> bool:
    """Whether no card gets more than it has room for."""
    at = 0
    for free, count in zip(room, counts, strict=True):
        if sum(sizes[at : at + count]) > free:
            return False
        at += count
    return True


def state_bytes(source: ModelFile, asked: Offload) -> dict[str, int]:
    """Bytes of each state of one sequence, by name, with those of what is kept of it along prompts
    by default; those of further programs included."""
    # Where all layers are on a card, a session goes back by a token unless it is told otherwise.
    options = SessionOptions(asked.n_ctx, n_rs_seq=max(1, asked.n_rs_seq))
    found: dict[str, int] = {}
    for spec, capacity in _memories(source, options):
        found |= {name: state.nbytes for name, state in spec.states(capacity).items()}
        if isinstance(spec, RecurrentSpec):
            for name, state in spec.live(capacity).items():
                found[name] += KEPT_STATES * 4 * state.shape[-1]
    return found


def _memories(source: ModelFile, options: SessionOptions) -> Iterator[tuple[MemorySpec, Capacity]]:
    """What the model's programs keep between passes, and the sizes of a session."""
    for name in ("trunk", "mtp"):
        capacity = session_capacity(source.arch, name, options)
        yield from ((spec, capacity) for spec in source.arch.programs()[name].memories)
