"""Quantised model files: which tensor gets which type, and writing them."""

from .importance import Importance, load_importance
from .mix import MIXES, Mix, find_mix
from .plan import Step, plan
from .write import Recode, check_importance, quantize

__all__ = [
    "MIXES",
    "Importance",
    "Mix",
    "Recode",
    "Step",
    "check_importance",
    "find_mix",
    "load_importance",
    "plan",
    "quantize",
]
