"""Dense float64 forward passes of every architecture: the oracle of the engine's tests."""

from __future__ import annotations

from numpy_dense import Array, Dense, Gemma3, Llama, Qwen3, silu
from numpy_hybrids import GraniteHybrid, KimiLinear, Lfm2, Lfm2Moe, Qwen3Next, Qwen35, Qwen35Moe
from tiny_models import TinyModel

__all__ = ["KINDS", "Dense", "hidden_rows", "logits", "mtp", "silu"]


def logits(model: TinyModel, tokens: list[int], rounded: bool = False) -> Array:
    """Logits f64 [N, n_vocab] of every position of one sequence.

    rounded: what a q8_0 matrix multiplies is rounded to 8 bits in blocks of 32 first."""
    return KINDS[model.arch](model, rounded).logits(tokens)


def hidden_rows(model: TinyModel, tokens: list[int]) -> Array:
    """Rows f64 [N, n_embd] after the final norm."""
    return _hybrid(model).hidden(tokens)


def mtp(model: TinyModel, tokens: list[int], before: Array) -> tuple[Array, Array]:
    """The multi-token-prediction block over pairs of a token and a hidden row [N, n_embd]: logits
    f64 [N, n_vocab] and its own hidden rows."""
    return _hybrid(model).mtp(tokens, before)


def _hybrid(model: TinyModel) -> Qwen35:
    kind = KINDS[model.arch](model)
    assert isinstance(kind, Qwen35)
    return kind


KINDS: dict[str, type[Dense]] = {
    "llama": Llama,
    "qwen3": Qwen3,
    "gemma3": Gemma3,
    "qwen35": Qwen35,
    "qwen35moe": Qwen35Moe,
    "qwen3next": Qwen3Next,
    "granitehybrid": GraniteHybrid,
    "kimi-linear": KimiLinear,
    "lfm2": Lfm2,
    "lfm2moe": Lfm2Moe,
}
