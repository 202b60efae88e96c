"""Model files and their meaning: container, codecs, tokenizers, architectures."""

from .load import ModelFile, load_file

__all__ = ["ModelFile", "load_file"]
