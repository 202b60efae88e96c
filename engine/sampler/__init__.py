"""Choosing the next token from logits: parameters, the chain of filters, and the draw."""

from typing import TYPE_CHECKING

from ...graph.late import late_names

if TYPE_CHECKING:
    from .params import SamplerParams, Sampling
    from .sampler import DeviceDraw, Sampler

__all__ = late_names(
    __name__,
    {
        ".params": "SamplerParams Sampling",
        ".sampler": "DeviceDraw Sampler",
    },
)
