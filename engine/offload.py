"""Which layers of a model run on which device.

The last layers go to the cards, the first ones stay on the processor, so that the head, the largest
product of a decode step, is on a card as soon as anything is. Several cards get consecutive layers,
in proportion to what each has free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..backends import Backend, SplitBackend, devices, free_bytes, open_backend
from ..backends.debug import unwatched
from ..graph.errors import BackendError, RequestError
from ..models import ModelFile
from ..models.step import PAGE, Capacity, StepShape

AUTO = "auto"
HEAD = ("output.weight", "output_norm.weight", "draft_head.weight")


@dataclass(frozen=True)
class Offload:
    """layers: how many of the last layers run on the cards, the head counting as one more: None for
    all, "auto" for as many as fit beside a session of n_ctx tokens that can forget n_rs_seq;
    reserve: bytes that stay free on each card, for working memory and other models."""

    layers: int | str | None = None
    n_ctx: int | None = None
    n_rs_seq: int = 0
    reserve: int = 512 << 20

    def __post_init__(self) -> None:
        if isinstance(self.layers, str) and self.layers != AUTO:
            raise RequestError(f"gpu_layers should be a number or 'auto', got {self.layers!r}")
        if isinstance(self.layers, int) and self.layers < 0:
            raise RequestError(f"gpu_layers should be 0 or more, got {self.layers}")


def open_for(source: ModelFile, device: str, threads: int | None, asked: Offload) -> Backend:
    """The backend for a model on a device, or split over several by layers.

    Raises BackendError for layers that should go to cards where the device names none."""
    names = [part.strip() for part in device.split(",")]
    if names == ["auto"]:
        names = [devices()[0].name]
    cards = [name for name in names if name.startswith("cuda")]
    if asked.layers is None and (len(cards) < 2 or len(cards) < len(names)):
        return open_backend(device, threads)
    if not cards:
        raise BackendError(
            f"gpu_layers (--gpu-layers) puts layers on cards, and device {device!r} has none; "
            "`riverrun devices` lists what there is"
        )
    layers = _Layers(source, asked)
    counts = layers.counts(cards)
    if not sum(counts):
        return open_backend("cpu", threads)
    if counts == [layers.total]:
        return open_backend(cards[0], threads)
    where = cards if sum(counts) == layers.total else [*cards, "cpu"]
    parts = [unwatched(open_backend(name, threads)) for name in where]
    return SplitBackend(parts, layers.homes(counts))


class _Layers:
    """Sizes of a model's layers, the head being the last; 0 is the first."""

    def __init__(self, source: ModelFile, asked: Offload) -> None:
        self.asked = asked
        self._weights = {name: spec.nbytes for name, spec in source.specs.items()}
        self._states = _states(source, asked)
        names = [*self._weights, *self._states]
        self._blocks = 1 + max((b for n in names if (b := layer_of(n)) is not None), default=-1)
        self.total = self._blocks + 1
        self.sizes = [0] * self.total
        for name, nbytes in [*self._weights.items(), *self._states.items()]:
            at = self._place(name)
            if at is not None:
                self.sizes[at] += nbytes
        # The embedding is where the graph begins, and with tied weights it is the head, too.
        self.loose = sum(n for name, n in self._weights.items() if self._place(name) is None)

    def _place(self, name: str) -> int | None:
        layer = layer_of(name)
        return self._blocks if name in HEAD else layer

    def counts(self, cards: Sequence[str]) -> list[int]:
        """How many layers each card gets, in order."""
        free = [max(0, free_bytes(card) - self.asked.reserve) for card in cards]
        free[0] = max(0, free[0] - self.loose)
        wanted = self.total
        if isinstance(self.asked.layers, int):
            wanted = min(self.asked.layers, self.total)
        elif self.asked.layers == AUTO:
            wanted = self._fitting(free)
        return _shares(self.sizes[self.total - wanted :], free)

    def _fitting(self, free: Sequence[int]) -> int:
        """The most of the last layers that fit when each card is filled in turn."""
        for wanted in range(self.total, 0, -1):
            sizes, room = self.sizes[self.total - wanted :], list(free)
            at = 0
            for size in sizes:
                while at < len(room) and room[at] < size:
                    at += 1
                if at == len(room):
                    break
                room[at] -= size
            else:
                return wanted
        return 0

    def homes(self, counts: Sequence[int]) -> dict[str, int]:
        """The backend of every weight and state that belongs to a layer: cards, then the
        processor."""
        owners = [len(counts)] * (self.total - sum(counts))
        for card, count in enumerate(counts):
            owners += [card] * count
        found = {}
        for name in [*self._weights, *self._states]:
            at = self._place(name)
            if at is not None:
                found[name] = owners[at]
        return found


def layer_of(name: str) -> int | None:
    """The layer of a weight ("blk.3.attn_q.weight") or state ("cache_k.3"); None for others."""
    head, _, rest = name.partition(".")
    number = rest.split(".", 1)[0]
    return int(number) if number.isdigit() and (head == "blk" or "." not in rest) else None


def _shares(sizes: Sequence[int], free: Sequence[int]) -> list[int]:
    """Consecutive layers for each card, in proportion to what is free there."""
    whole, counts, at, done = sum(sizes) or 1, [], 0, 0.0
    for card, room in enumerate(free):
        done += whole * room / (sum(free) or 1)
        end = at
        while end < len(sizes) and (card == len(free) - 1 or sum(sizes[: end + 1]) <= done):
            end += 1
        counts.append(end - at)
        at = end
    return counts


def _states(source: ModelFile, asked: Offload) -> Mapping[str, int]:
    """Bytes of each state of one sequence, by name, those of further programs included."""
    n_ctx = asked.n_ctx or min(source.arch.hp.n_ctx_train or 4096, 4096)
    pages = -(-n_ctx // PAGE)
    capacity = Capacity(pages, pages, 1, log=2 * (asked.n_rs_seq + 1))
    builds = [source.arch.build]
    if any(".nextn." in name for name in source.specs):
        builds.append(source.arch.mtp)
    graphs = [build(StepShape(1, 1, 1), capacity, source.specs) for build in builds]
    leaves = (node for graph in graphs for node in graph.nodes if node.op.name == "state")
    return {node.name: node.specs[0].nbytes for node in leaves}
