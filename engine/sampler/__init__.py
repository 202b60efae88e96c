"""Choosing the next token from logits: parameters, the chain of filters, and the draw."""

from .params import SamplerParams, Sampling
from .sampler import DeviceDraw, Sampler

__all__ = ["DeviceDraw", "Sampler", "SamplerParams", "Sampling"]
