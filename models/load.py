"""From a GGUF path to a checked model: architecture, tokenizer, weights on the host."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..graph import HostTensor, TensorSpec
from ..graph.errors import ModelError, RequestError
from .architecture import Architecture, check_tensors, find_architecture
from .chat import ChatTemplates
from .gguf import GgufFile, open_gguf
from .step import DRAFT_HEAD
from .tokenizer import Tokenizer, load_tokenizer

SAMPLE = 256  # bytes of each end of a tensor that go into the fingerprint


@dataclass(frozen=True)
class ModelFile:
    """A model as it lies in its file; weights are views onto the mapped file, or onto its copy in
    memory."""

    path: Path
    file: GgufFile
    arch: Architecture
    tokenizer: Tokenizer
    weights: dict[str, HostTensor]

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """The spec of every weight."""
        return {name: tensor.spec for name, tensor in self.weights.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Tells this model from others: a hash of its hyperparameters and of its tensors' names,
        types, shapes and samples."""
        digest = hashlib.sha256(f"{self.arch.name} {self.arch.hp}".encode())
        for name, tensor in self.weights.items():
            if name == DRAFT_HEAD:
                continue
            digest.update(f"{name} {tensor.spec}".encode())
            digest.update(tensor.raw[:SAMPLE].tobytes() + tensor.raw[-SAMPLE:].tobytes())
            if tensor.give_back:
                tensor.give_back(tensor.raw)
        return digest.hexdigest()

    @cached_property
    def chat_templates(self) -> ChatTemplates:
        """The chat templates that the file holds."""
        return ChatTemplates.read(str(self.path), self.file.metadata, self.tokenizer)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(t.spec.nbytes for t in self.weights.values())

    def check_unchanged(self) -> None:
        """Raise ModelError where the mapped file was written to or cut since it was loaded."""
        self.file.check_unchanged()


def load_file(
    path: str | os.PathLike[str], draft_head: int = 0, load: str = "map", normalize: bool = True
) -> ModelFile:
    """Open and check a model file. draft_head: how many of the first rows of the head to offer as
    the draft head; the first ids of a BPE vocabulary are its most frequent tokens. load: "map"
    reads weights from the file as they are used, "read" copies it into memory. normalize: bring
    texts to the normal form that the model was trained on (`load_tokenizer`).

    Raises GgufError for a damaged container, TokenizerError for a bad vocabulary, ModelError for
    anything else that keeps the model from running."""
    file = open_gguf(path, load)
    arch, tokenizer = read_model(file, normalize)
    weights = {
        name: HostTensor(TensorSpec(tensor.shape, tensor.dtype), tensor.data, tensor.give_back)
        for name, tensor in file.tensors.items()
    }
    if draft_head:
        name = arch.draft_head_weight(weights.__contains__)
        weights[DRAFT_HEAD] = _first_rows(str(file.path), weights[name], draft_head)
    return ModelFile(Path(file.path), file, arch, tokenizer, weights)


def open_tokenizer(path: str | os.PathLike[str], normalize: bool = True) -> Tokenizer:
    """The tokenizer of a GGUF file alone. Neither weights nor architecture are looked at, so that
    files of a vocabulary and of models that cannot be run will do.

    Raises GgufError for a damaged container, TokenizerError for a bad vocabulary."""
    with open_gguf(path, whole=False) as file:
        return load_tokenizer(file.metadata, str(file.path), normalize)


def read_model(file: GgufFile, normalize: bool = True) -> tuple[Architecture, Tokenizer]:
    """The architecture and the tokenizer of an open file, its tensor table checked against them;
    no tensor's data is read. Raises ModelError for what keeps the model from running."""
    cls = find_architecture(file)
    tokenizer = load_tokenizer(file.metadata, str(file.path), normalize)
    arch = cls(file, _vocabulary_size(file, tokenizer))
    check_tensors(arch, file)
    return arch, tokenizer


def _first_rows(path: str, head: HostTensor, n: int) -> HostTensor:
    rows, width = head.spec.shape
    if not 1 <= n <= rows:
        raise RequestError(f"{path}: draft_head should be 1 to {rows} tokens, got {n}")
    spec = TensorSpec((n, width), head.spec.dtype)
    return HostTensor(spec, head.raw[: spec.nbytes], head.give_back)


def _vocabulary_size(file: GgufFile, tokenizer: Tokenizer) -> int:
    """The rows of the embedding, which may be padded beyond the tokenizer's vocabulary."""
    table = file.infos.get("token_embd.weight")
    if table is None or len(table.shape) != 2 or not table.shape[0]:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' [n_vocab, n_embd] is missing")
    if table.shape[0] < tokenizer.n_vocab:
        raise ModelError(
            f"{file.path}: 'token_embd.weight' should have a row for each of "
            f"{tokenizer.n_vocab} tokens, got {table.shape[0]}"
        )
    return table.shape[0]
