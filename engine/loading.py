"""Loading a model: its file, its device, and its weights in the layouts that kernels read."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..models import load_file
from .drafting import Opener
from .model import Model
from .offload import Offload

Progress = Callable[[int, int], None]


def load(
    path: str | os.PathLike[str],
    device: str = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
    draft_head: int = 0,
    offload: Offload | None = None,
    drafters: Callable[[str], Opener] | None = None,
    load: str = "map",
    normalize: bool = True,
) -> Model:
    """Load a GGUF model onto a device; the arguments are those of `riverrun.load`, which also gives
    drafters: what `speculative=` asks for by name.

    Raises ModelError or BackendError."""
    source = load_file(path, draft_head, load, normalize)
    model = Model(source, device, threads, offload, drafters)
    _warm(model, progress)
    return model


def _warm(model: Model, progress: Progress | None) -> None:
    """Bind one small step, which brings every weight into the layout that its kernel reads."""
    done, total = 0, model.source.nbytes

    def moved(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress:
            progress(min(done, total), total)

    model.weights.progress = moved
    model.session(n_ctx=1)
    model.weights.progress = None
    if progress:
        progress(total, total)
