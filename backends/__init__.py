"""Backends: what runs a graph. Each says which nodes it takes and compiles graphs to plans."""

from .base import Backend, BoundPlan, Plan, Pools, Support
from .registry import Device, devices, free_bytes, is_card, open_backend
from .scheduler import SplitBackend

__all__ = [
    "Backend",
    "BoundPlan",
    "Device",
    "Plan",
    "Pools",
    "SplitBackend",
    "Support",
    "devices",
    "free_bytes",
    "is_card",
    "open_backend",
]
