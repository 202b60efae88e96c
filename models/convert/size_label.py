"""How a model is called by its size, as general.size_label has it.

Source: "GGUF Naming Convention" of the GGUF specification."""

from __future__ import annotations

import math
from collections.abc import Mapping

_SCALES = ((10**12, 1e-12, "T"), (10**9, 1e-9, "B"), (10**6, 1e-6, "M"), (10**3, 1e-3, "K"))


def size_label(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Of tensors' shapes by name: the number of parameters, "13M", or with experts their number and
    the parameters that one of them and all else have, "8x7B"."""
    shared = each = 0
    counts = []
    for name, shape in shapes.items():
        n = math.prod(shape)
        if "_exps." in name:
            counts.append(shape[0])
            each += n // shape[0]
        else:
            shared += n
    rounded = _rounded(shared + each)
    return f"{sum(counts) // len(counts)}x{rounded}" if counts else rounded


def _rounded(n: int) -> str:
    """A count with two digits at least: 1.5B, 13M."""
    _, scale, unit = next((s for s in _SCALES if n > s[0]), _SCALES[-1])
    digits = max(0, 2 - len(str(round(n * scale)).lstrip("0")))
    return f"{n * scale:.{digits}f}{unit}"
