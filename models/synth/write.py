"""Writing a model file of a shape: the architecture says which tensors, a mix in which types."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ...graph import TensorSpec
from ...graph.dtype import DType, dtype
from ...graph.errors import RequestError
from ..architecture import Architecture, Want, find_architecture
from ..gguf import (
    QUANTIZATION_VERSION,
    Field,
    GgufFile,
    NewTensor,
    fields_of,
    new_fields,
    open_gguf,
    write_gguf,
)
from ..quantizing import Chooser, Mix, Recode, fit_rows, is_quantized, order
from .shapes import Shape, find_shape
from .values import Banks, router_rows, size_of, vector

ROUTERS = ("even", "skewed")
_COLUMNS = ("ssm_a", "ssm_d")  # vectors that are stored as [n, 1]
# What a file may lack and real ones have.
_TAKEN = ("nextn.shared_head_norm.weight",)


def synthesize(
    name: str,
    mix: Mix,
    out: Path,
    recode: Recode,
    *,
    mtp: bool = False,
    vocab: str | os.PathLike[str] | None = None,
    seed: int = 0,
    router: str = "even",
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a model file with the shape `name` and random weights in the types of a mix.

    mtp: with a block that predicts further tokens. vocab: a GGUF file whose tokenizer is copied;
    without one, prompts are token ids. The same seed gives the same file. router: how often experts
    are chosen, one of ROUTERS. The other arguments are those of write_gguf.

    Raises RequestError for arguments, ModelError for an architecture that is not there, and what
    write_gguf raises."""
    if router not in ROUTERS:
        raise RequestError(f"router: expected one of {', '.join(ROUTERS)}, got {router!r}")
    shape = find_shape(name)
    fields, shape = metadata(name, shape, mix, mtp, vocab)
    wants, types = tensors_of(fields, shape, mix)
    if mtp and not any(".nextn." in want.name for want in wants):
        raise RequestError(
            f"mtp: architecture {shape.arch!r} has no block that predicts more tokens"
        )
    banks = Banks(seed, recode)
    tensors = [
        NewTensor(want.name, want.shape, kind, partial(_pieces, want, kind, banks, router))
        for want, kind in zip(wants, types, strict=True)
    ]
    write_gguf(out, fields, tensors, force=force, progress=progress)


def metadata(
    name: str, shape: Shape, mix: Mix, mtp: bool, vocab: str | os.PathLike[str] | None
) -> tuple[dict[str, Field], Shape]:
    """Metadata, and the shape with the number of tokens of `vocab`."""
    keys = dict(shape.keys)
    if mtp:
        keys |= {"block_count": keys["block_count"] + 1, "nextn_predict_layers": 1}
    values = {
        "general.architecture": shape.arch,
        "general.name": f"synthetic {name}",
        "general.file_type": mix.file_type,
        "general.quantization_version": QUANTIZATION_VERSION,
        **{f"{shape.arch}.{key}": value for key, value in keys.items()},
    }
    if vocab is None:
        values |= {"tokenizer.ggml.model": "none", f"{shape.arch}.vocab_size": shape.n_vocab}
        return new_fields(values), shape
    with open_gguf(vocab) as file:
        given = fields_of(file.metadata)
        n_vocab = len(file.get_str_array("tokenizer.ggml.tokens"))
    words = {key: value for key, value in given.items() if key.startswith("tokenizer.")}
    return new_fields(values) | words, replace(shape, n_vocab=n_vocab)


def tensors_of(fields: dict[str, Field], shape: Shape, mix: Mix) -> tuple[list[Want], list[DType]]:
    """What the architecture wants of a file with this metadata, in order, and the types."""
    with _opened(fields) as file:
        return _tensors(find_architecture(file)(file, shape.n_vocab), file, shape, mix)


def outline(
    shape: Shape, mix: Mix, mtp: bool = False
) -> tuple[Architecture, dict[str, TensorSpec]]:
    """The architecture of a shape, and the specs of the tensors that its file would have.

    mtp: with a block that predicts further tokens. Raises ModelError for an architecture that is
    not there."""
    fields, shape = metadata("outline", shape, mix, mtp, None)
    with _opened(fields) as file:
        architecture = find_architecture(file)(file, shape.n_vocab)
        wants, types = _tensors(architecture, file, shape, mix)
    specs = (TensorSpec(want.shape, kind) for want, kind in zip(wants, types, strict=True))
    return architecture, dict(zip((want.name for want in wants), specs, strict=True))


@contextmanager
def _opened(fields: dict[str, Field]) -> Iterator[GgufFile]:
    """A file of this metadata and no tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metadata.gguf"
        write_gguf(path, fields, [])
        with open_gguf(path) as file:
            yield file


def _tensors(
    architecture: Architecture, file: GgufFile, shape: Shape, mix: Mix
) -> tuple[list[Want], list[DType]]:
    wants = sorted(
        (w for w in architecture.wants() if _taken(w, shape)), key=lambda w: order(w.name)
    )
    chooser = Chooser(file, mix, [want.name for want in wants], importance=False)
    return wants, [_type(want, chooser) for want in wants]


def _taken(want: Want, shape: Shape) -> bool:
    own_head = want.name == "output.weight" and not shape.tied
    return not want.optional or own_head or want.name.endswith(_TAKEN)


def _type(want: Want, chooser: Chooser) -> DType:
    if not is_quantized(want.name, want.shape):
        return dtype("f32")
    return dtype(fit_rows(chooser.choose(want.name, want.shape), want.shape[-1]))


def _pieces(want: Want, kind: DType, banks: Banks, router: str) -> Iterator[bytes | np.ndarray]:
    """The storage of a tensor."""
    name, shape = want.name, want.shape
    if len(shape) == 1 or name.endswith(_COLUMNS):
        yield vector(name, math.prod(shape), banks.rng(name))
    elif name.endswith("ffn_gate_inp.weight"):
        yield router_rows(shape, router, banks.rng(name))
    else:
        yield from banks.pieces(name, shape, kind, size_of(name, shape))
