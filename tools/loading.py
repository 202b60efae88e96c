"""Loading a model for a subcommand, with a progress bar for people who watch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..graph.fields import integer, one_of, option
from .messages import note
from .progress import progress_bar

if TYPE_CHECKING:
    from ..engine import Model
    from ..engine.offload import Offload

MOST_THREADS = 4096
LOADS = ("map", "read")


def read_layers(text: str) -> int | str:
    """What --gpu-layers asks for. Raises ValueError."""
    if text == "auto":
        return text
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"expected a number of 0 or more, or auto, got {text!r}")
    return number


def read_overrides(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What --override-tensor asks for, from texts of the form REGEX=DEVICE. Raises ValueError."""
    return tuple(_override(text) for text in texts)


def _override(text: str) -> tuple[str, str]:
    from ..backends.registry import canonical, usable_names

    regex, _, device = text.rpartition("=")
    if not regex:
        raise ValueError(f"expected REGEX=DEVICE, got {text!r}")
    try:
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"{regex!r} is no regular expression: {error}") from None
    names = usable_names()
    for name in (device, canonical(device.lower())):
        if name in names:
            return regex, name
    raise ValueError(f"expected a device of {', '.join(names)}, got {device!r}")


@dataclass(frozen=True)
class Loading:
    """Which model a subcommand runs, and on what."""

    model: Path | None = option(
        None, metavar="MODEL", help="GGUF file.", shown="the bundled demo model"
    )
    threads: int | None = option(
        None,
        "-t",
        "--threads",
        metavar="THREADS",
        help="Processor threads, up to one for each processor.",
        shown="the physical cores that affinity and the cgroup quota allow",
        check=integer(1, MOST_THREADS),
    )
    device: str = option(
        "auto",
        "--device",
        metavar="D[,D]",
        help="auto, or names that `devices` lists, commas between; earlier ones go first.",
    )
    gpu_layers: int | str | None = option(
        None,
        "--gpu-layers",
        metavar="N|auto",
        help="How many of the last layers run on the cards, the head counting as one; auto: as "
        "many as fit. The others run on the processor.",
        shown="all",
        read=read_layers,
    )
    n_cpu_moe: int = option(
        0,
        "--n-cpu-moe",
        metavar="N",
        help="Experts of the first N layers stay on the processor, the rest of their layers does "
        "not.",
        check=integer(0, 2**31 - 1),
    )
    override_tensor: tuple[tuple[str, str], ...] = option(
        (),
        "--override-tensor",
        metavar="REGEX=DEVICE",
        help="Device of the tensors in whose names the expression is found; repeatable, the first "
        "one counts.",
        repeatable=True,
        read=read_overrides,
    )
    load: str = option(
        "map",
        "--load",
        metavar="map|read",
        help="map: weights stay in the file, which must not change meanwhile; read: copy it into "
        "memory first.",
        check=one_of(LOADS),
    )
    normalize: bool = option(
        True,
        "--no-normalize",
        help="Encode texts as they are, as llama.cpp does, and not in the Unicode normal form that "
        "the model was trained on.",
    )
    draft_head: int = option(
        0,
        "--draft-head",
        metavar="N",
        help="mtp chooses among the first N tokens of the vocabulary; 0: among all.",
        check=integer(0, 2**31 - 1),
    )

    def offload(self, n_ctx: int | None = None, n_rs_seq: int = 0) -> Offload:
        """What is to lie where, beside a session of these sizes; said in a line before weights are
        loaded, where some are apart from their layers."""
        from ..engine.offload import Offload

        return Offload(
            self.gpu_layers,
            n_ctx,
            n_rs_seq,
            n_cpu_moe=self.n_cpu_moe,
            override_tensor=self.override_tensor,
            tell=note,
        )


def load_asked(loading: Loading, offload: Offload | None = None) -> Model:
    """The model that the options name. offload: what lies where, by default as the options say.
    Raises what `riverrun.load` raises."""
    return load_model(
        loading.model,
        loading.device,
        loading.threads,
        loading.draft_head,
        offload or loading.offload(),
        loading.load,
        loading.normalize,
    )


def load_model(
    path: Path | None,
    device: str,
    threads: int | None,
    draft_head: int = 0,
    offload: Offload | None = None,
    load: str = "map",
    normalize: bool = True,
) -> Model:
    """The model at path, or the bundled demo. A bar on standard error while weights are laid out,
    if that is a terminal. Raises what `riverrun.load` raises."""
    import riverrun

    source = path or riverrun.DEMO_MODEL
    with progress_bar(f"loading {source.name}") as progress:
        return riverrun.load(
            source,
            device,
            threads,
            progress=progress,
            draft_head=draft_head,
            offload=offload,
            load=load,
            normalize=normalize,
        )
