"""Rotary parameters of a configuration as metadata."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .config import Config

PLAIN = ("default", "linear", "dynamic", "llama3")


def rope_keys(c: Config) -> dict[str, Any]:
    """rope.* of the layers that see all. Raises ModelError for a kind of scaling that is not
    known."""
    rope = c.rope
    found: dict[str, Any] = {}
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": number(c, rope, "factor")}
    elif kind == "yarn":
        found |= yarn_keys(c, rope)
    elif kind not in (*PLAIN, "longrope", "su", "proportional"):
        raise c.fault("rope_parameters.rope_type", f"{', '.join(PLAIN)}, yarn or longrope", kind)
    if "rope_theta" in rope:
        found["rope.freq_base"] = number(c, rope, "rope_theta")
    return found


def yarn_keys(c: Config, rope: dict[str, Any]) -> dict[str, Any]:
    """rope.scaling.* of YaRN."""
    length = rope.get("original_max_position_embeddings", c.integer("max_position_embeddings"))
    factor = number(c, rope, "factor")
    found: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": int(length),
    }
    for key, name in (
        ("ext_factor", "extrapolation_factor"),
        ("beta_fast", "beta_fast"),
        ("beta_slow", "beta_slow"),
    ):
        if rope.get(name) is not None:
            found[f"rope.scaling.yarn_{key}"] = number(c, rope, name)
    share = _magnitude(c, rope, factor) / _growth(factor)
    if share != 1:
        found["rope.scaling.attn_factor"] = share
    return found


def _magnitude(c: Config, rope: dict[str, Any], factor: float) -> float:
    """What queries and keys are multiplied by."""
    if rope.get("attention_factor") is not None:
        return number(c, rope, "attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        above, below = number(c, rope, "mscale"), number(c, rope, "mscale_all_dim")
        return _growth(factor, above) / _growth(factor, below)
    return _growth(factor)


def _growth(factor: float, share: float = 1.0) -> float:
    """YaRN's 1 + 0.1 ln(factor). Source: Peng et al. 2023, arXiv 2309.00071."""
    return 1 + 0.1 * share * math.log(factor) if factor > 1 else 1.0


def number(c: Config, rope: dict[str, Any], name: str) -> float:
    """A number of the rotary parameters. Raises ModelError where it is none."""
    value = rope.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise c.fault(f"rope_parameters.{name}", "a number", value)
    return float(value)


def llama3_factors(c: Config, n_rot: int) -> np.ndarray | None:
    """Divisors f32 [n_rot / 2] of the frequencies of Llama 3.1, None for another kind of scaling.

    Waves longer than the old context / low_freq_factor are slowed by the whole factor, those
    shorter than it / high_freq_factor not at all, and between them the share goes linearly.
    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models"; the published configuration."""
    rope = c.rope
    if rope.get("rope_type") != "llama3":
        return None
    base, factor = number(c, rope, "rope_theta"), number(c, rope, "factor")
    low, high = number(c, rope, "low_freq_factor"), number(c, rope, "high_freq_factor")
    length = number(c, rope, "original_max_position_embeddings")
    waves = 2 * math.pi * base ** (np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    with np.errstate(all="ignore"):
        kept = np.clip((length / waves - low) / np.float64(high - low), 0, 1)
        found = (1 / ((1 - kept) / np.float64(factor) + kept)).astype(np.float32)
    if not np.isfinite(found).all():
        raise c.fault("rope_parameters", "such that frequencies are finite", rope)
    return found
