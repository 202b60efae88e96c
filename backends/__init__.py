"""Backends: what runs a graph. Each says which nodes it takes and compiles graphs to plans."""

from .base import Backend, BoundPlan, Plan, Pools, Support
from .registry import Device, devices, open_backend

__all__ = ["Backend", "BoundPlan", "Device", "Plan", "Pools", "Support", "devices", "open_backend"]
