"""What generated text must look like: legal tokens from a JSON schema, a regex or a grammar."""

from .base import Constraint, start_constraint
from .budget import ReasoningBudget
from .kinds import KINDS, compile_constraint

__all__ = ["KINDS", "Constraint", "ReasoningBudget", "compile_constraint", "start_constraint"]
