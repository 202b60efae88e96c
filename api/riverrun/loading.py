"""Loading models, with drafters by name."""

from __future__ import annotations

import os

from riverrun import engine
from riverrun.engine import Model
from riverrun.engine.loading import Progress
from riverrun.engine.offload import Offload
from riverrun.speculative import speculation_of


def load(
    path: str | os.PathLike[str],
    device: str = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
    draft_head: int = 0,
    offload: Offload | None = None,
    load: str = "map",
    normalize: bool = True,
) -> Model:
    """Load a GGUF model onto a device: "auto", "cpu", "cuda", "cuda:1", "reference", or several
    with commas between; cards split it by layers.

    threads: for the CPU, by default what affinity and the cgroup quota allow. progress is called
    with (bytes done, bytes in all). draft_head: offer the first so many tokens of the vocabulary as
    a smaller head for drafts (Speculation.draft_head). offload: how many layers go to the cards.
    load: "map" reads weights from the file as they are used, which must not be written to while the
    model lives; "read" copies the file into memory. normalize: bring texts to the Unicode normal
    form that the model was trained on (NFC for Qwen and some others) before they are encoded; False
    leaves them as they are, as llama.cpp does. Raises ModelError or BackendError."""
    return engine.load(
        path, device, threads, progress, draft_head, offload, speculation_of, load, normalize
    )
