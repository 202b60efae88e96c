"""Hugging Face checkpoints to GGUF files. `convert` does it; a family of checkpoints is one file in
arch/."""

from .writing import OUTTYPES, convert

__all__ = ["OUTTYPES", "convert"]
