"""Random values of tensors by their names, in a size that keeps activations and logits near 1."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from ...graph.dtype import DType, dtype
from ..gguf import stored_bytes
from ..quantizing import Recode

_BANK = 1 << 20  # values that blocks are taken from
_ROW = 4096  # of them, what is encoded as one row
_PIECE = 1 << 24  # bytes at a time
_PLAIN = 256  # values that are taken together of types without blocks


class Banks:
    """Encoded normal values, a bank for each type and size, of which tensors take random blocks."""

    def __init__(self, seed: int, recode: Recode) -> None:
        self.seed = seed
        self._recode = recode
        self._banks: dict[tuple[str, float], np.ndarray] = {}

    def pieces(self, name: str, shape: tuple[int, ...], kind: DType, std: float) -> Iterator[bytes]:
        """The storage of a tensor. The same for a seed and a name, whatever was taken before."""
        bank = self._bank(kind, std)
        rng = self.rng(name)
        width = bank.shape[1]
        left = stored_bytes(shape, kind)
        while left > 0:
            count = min(-(-left // width), _PIECE // width)
            raw = bank[rng.integers(0, len(bank), count)].reshape(-1)[:left]
            yield raw.tobytes()
            left -= raw.size

    def rng(self, name: str) -> np.random.Generator:
        """The random numbers of a name."""
        return np.random.default_rng((self.seed, zlib.crc32(name.encode())))

    def _bank(self, kind: DType, std: float) -> np.ndarray:
        """uint8 [blocks, bytes]."""
        found = self._banks.get((kind.name, std))
        if found is None:
            x = self.rng(kind.name).standard_normal((_BANK // _ROW, _ROW), np.float32)
            x *= np.float32(std)
            raw = self._recode(x.view(np.uint8).reshape(-1), dtype("f32"), kind, _ROW, None)
            found = raw.reshape(-1, kind.row_bytes(kind.block if kind.quantized else _PLAIN))
            self._banks[kind.name, std] = found
        return found


def size_of(name: str, shape: tuple[int, ...]) -> float:
    """The standard deviation of a matrix's values."""
    if name.endswith("token_embd.weight"):
        return 0.02
    return 0.5 if "ssm_conv1d" in name else float(shape[-1]) ** -0.5


def vector(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """f32 [n]: norms are 1, decays of delta nets those of a trained model, others small."""
    if name.endswith("norm.weight"):
        values = np.ones(n)
    elif name.endswith("ssm_a"):
        values = -np.exp(rng.uniform(-3, 1.5, n))
    elif name.endswith("ssm_dt.bias"):
        values = rng.standard_normal(n)
    elif name.endswith(".weight"):
        values = rng.standard_normal(n) * n**-0.5
    else:
        values = rng.standard_normal(n) * 0.02
    return values.astype(np.float32)


def router_rows(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> np.ndarray:
    """f32 [experts, n_embd]. even: all experts are chosen about as often. skewed: rows shrink by
    their rank, in random order, so that a few experts get most tokens."""
    rows = rng.standard_normal(shape) * float(shape[-1]) ** -0.5
    if kind == "skewed":
        rank = 1 + rng.permutation(shape[0])
        rows *= (2 * rank[:, None] / shape[0]) ** -0.5
    return rows.astype(np.float32)
