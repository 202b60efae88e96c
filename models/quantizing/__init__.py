"""Quantised model files: which tensor gets which type, and writing them."""

from .importance import Importance, load_importance
from .mix import MIXES, Mix, find_mix
from .plan import Chooser, Step, fit_rows, is_quantized, order, plan
from .write import Recode, check_importance, quantize

__all__ = [
    "MIXES",
    "Chooser",
    "Importance",
    "Mix",
    "Recode",
    "Step",
    "check_importance",
    "find_mix",
    "fit_rows",
    "is_quantized",
    "load_importance",
    "order",
    "plan",
    "quantize",
]
