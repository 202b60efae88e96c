"""From a GGUF path to a checked model: architecture, tokenizer, weights on the host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..graph import HostTensor, TensorSpec
from ..graph.errors import ModelError
from . import quant  # noqa: F401  (registers the block codecs)
from .architecture import Architecture, check_tensors, find_architecture
from .gguf import GgufFile, open_gguf
from .tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class ModelFile:
    """A model as it lies in its file; weights are views onto the mapped file."""

    path: Path
    file: GgufFile
    arch: Architecture
    tokenizer: Tokenizer
    weights: dict[str, HostTensor]

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """The spec of every weight."""
        return {name: tensor.spec for name, tensor in self.weights.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(t.spec.nbytes for t in self.weights.values())


def load_file(path: str | os.PathLike[str]) -> ModelFile:
    """Open and check a model file.

    Raises GgufError for a damaged container, TokenizerError for a bad vocabulary, ModelError for
    anything else that keeps the model from running."""
    file = open_gguf(path)
    cls = find_architecture(file)
    tokenizer = load_tokenizer(file.metadata, str(file.path))
    arch = cls(file, _vocabulary_size(file, tokenizer))
    check_tensors(arch, file)
    weights = {
        name: HostTensor(TensorSpec(tensor.shape, tensor.dtype), tensor.data)
        for name, tensor in file.tensors.items()
    }
    return ModelFile(Path(file.path), file, arch, tokenizer, weights)


def _vocabulary_size(file: GgufFile, tokenizer: Tokenizer) -> int:
    """The rows of the embedding, which may be padded beyond the tokenizer's vocabulary."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' [n_vocab, n_embd] is missing")
    if table.shape[0] < tokenizer.n_vocab:
        raise ModelError(
            f"{file.path}: 'token_embd.weight' should have a row for each of "
            f"{tokenizer.n_vocab} tokens, got {table.shape[0]}"
        )
    return table.shape[0]
