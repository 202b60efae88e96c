"""What generated text must look like: legal tokens from a JSON schema, a regex or a grammar."""

from .base import Constraint, start_constraint
from .kinds import KINDS, compile_constraint

__all__ = ["KINDS", "Constraint", "compile_constraint", "start_constraint"]
