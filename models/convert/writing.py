"""From a checkpoint's folder to a GGUF file: what goes where, in which types, and the file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from ...graph.errors import ModelError, RequestError
from ..architecture import KERNELS, check_tensors, find_architecture
from ..gguf import open_gguf
from ..gguf.target import check_target, replacing
from .checkpoint import Array, Checkpoint, Shape, Source
from .config import Config, read_json
from .family import Family, Table, To, find_family
from .specials import sampling_keys
from .transforms import SAME, Transform
from .vocabulary import no_vocabulary_keys, vocabulary_keys

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
_FILE_TYPES = {"f32": LlamaFileType.ALL_F32, "f16": LlamaFileType.MOSTLY_F16}
_FILE_TYPES |= {"bf16": LlamaFileType.MOSTLY_BF16, "q8_0": LlamaFileType.MOSTLY_Q8_0}
# Matrices that every program reads as f32.
_ALWAYS_F32 = ("_norm.weight", "ffn_gate_inp.weight", *KERNELS)
_BYTES_OF_DATA = 1 << 20  # kept free beside the tensors, for metadata


@dataclass(frozen=True)
class Planned:
    """A tensor of the file: name, shape, stored type, and what its values come from."""

    name: str
    shape: Shape
    kind: str
    how: Transform
    sources: Sequence[Source]

    @property
    def stored(self) -> GGMLQuantizationType:
        """The type as the gguf package has it."""
        return GGMLQuantizationType[self.kind.upper()]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        block, size = gguf.GGML_QUANT_SIZES[self.stored]
        return math.prod(self.shape) // block * size

    def pieces(self) -> Iterator[Array]:
        """What goes into the file, in order."""
        if self.how is SAME and self.sources[0].kind.lower() == self.kind:
            for start, stop in self.sources[0].blocks():
                yield self.sources[0].stored(start, stop)
            return
        for piece in self.how.pieces(self.sources):
            ready = piece.dtype == np.uint8
            yield piece if ready else gguf.quants.quantize(np.ascontiguousarray(piece), self.stored)


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    outtype: str = "auto",
    *,
    force: bool = False,
    name: str = "",
    tokenizer: bool = True,
    pre: str = "",
    mtp: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a GGUF file from a Hugging Face checkpoint, and give its path back.

    folder: config.json, safetensors and tokenizer files. outtype: of matrices, one of OUTTYPES;
    "auto" is the type of most of the checkpoint; matrices that do not divide into its blocks are
    stored as f16, vectors and norms as f32. name: general.name, the folder's by default. tokenizer:
    without one, prompts are token ids. pre: the name of the pre-tokenizer, where it is not found.
    mtp: whether blocks that predict further tokens go into the file, where the checkpoint has them.
    progress: called with bytes written and their total.

    The file appears when it is whole; one that is there is replaced with `force` alone. Raises
    RequestError for arguments, ModelError for a checkpoint that cannot be converted, naming the key
    or tensor, and OSError for files."""
    source, target = Path(folder), Path(out)
    if outtype not in OUTTYPES:
        raise RequestError(f"outtype: expected one of {', '.join(OUTTYPES)}, got {outtype!r}")
    if not source.is_dir():
        raise RequestError(f"{source}: expected the folder of a Hugging Face checkpoint")
    check_target(target, force)
    config = Config.read(source)
    kin = find_family(config)
    checkpoint = Checkpoint(source)
    family = kin(config, checkpoint.tensors, mtp)
    keys = {f"{family.arch}.{key}": value for key, value in family.keys().items()}
    keys |= _vocabulary(family, source, config, tokenizer, pre)
    kind = checkpoint.kind.lower() if outtype == "auto" else outtype
    kind = "f32" if kind == "f64" else kind
    tensors = plan(family, checkpoint, kind)
    generation = source / "generation_config.json"
    recommended = sampling_keys(read_json(generation)) if generation.is_file() else {}
    general = {"general.type": "model", "general.name": name or source.resolve().name}
    general["general.size_label"] = _size_label(tensors)
    types: dict[str, Any] = {"general.file_type": int(_FILE_TYPES[kind])}
    types["general.quantization_version"] = gguf.GGML_QUANT_VERSION
    extra = dict(family.extra())
    _write(target, family.arch, general | recommended | keys | types, extra, tensors, progress)
    return target


def plan(family: Family, checkpoint: Checkpoint, kind: str) -> list[Planned]:
    """Every tensor of the file, matrices as `kind`. Raises one ModelError that lists tensors that
    are missing, or those that the family does not know."""
    held: dict[tuple[int | None, str], list[tuple[int, Source]]] = {}
    for source in checkpoint.tensors.values():
        place = family.kept(source.name)
        if place is not None:
            held.setdefault((place.block, place.part), []).append((place.expert, source))
    missing: list[str] = []
    found: list[Planned] = []
    if family.c.flag("tie_word_embeddings", default=False):
        held.pop((None, "lm_head.weight"), None)
    for block in (None, *range(family.n_block)):
        for part, targets in _table(family, block, held).items():
            sources = [s for _, s in sorted(held.pop((block, part), []), key=lambda pair: pair[0])]
            if sources:
                found += [_planned(to, block, sources, kind) for to in _several(targets)]
            elif not all(to.optional for to in _several(targets)):
                missing.append(part if block is None else f"layers.{block}.{part}")
    unknown = [source.name for sources in held.values() for _, source in sources]
    if missing or unknown:
        lists = {"missing": missing, "unknown": unknown}
        told = [f"{what} {_some(names)}" for what, names in lists.items() if names]
        raise ModelError(
            f"{checkpoint.folder}: tensors are not those of {type(family).hf[0]}: {'; '.join(told)}"
        )
    return found


def _table(family: Family, block: int | None, held: dict[tuple[int | None, str], Any]) -> Table:
    if block is None:
        return family.ends()
    return family.block(block, lambda part: (block, part) in held)


def _several(targets: To | tuple[To, ...]) -> tuple[To, ...]:
    return (targets,) if isinstance(targets, To) else targets


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _planned(to: To, block: int | None, sources: list[Source], kind: str) -> Planned:
    name = to.name if block is None else f"blk.{block}.{to.name}"
    try:
        shape = to.how.shape([source.shape for source in sources])
    except ValueError as error:
        raise _misfit(sources[0], str(error)) from None
    return Planned(name, shape, to.kind or stored_kind(name, shape, kind), to.how, sources)


def _misfit(source: Source, why: str) -> ModelError:
    return ModelError(f"{source.path}: tensor {source.name!r} {source.shape}: {why}")


def stored_kind(name: str, shape: Shape, kind: str) -> str:
    """The type in which a tensor is stored, where matrices are `kind`."""
    if len(shape) < 2 or not name.endswith(".weight") or name.endswith(_ALWAYS_F32):
        return "f32"
    block, _ = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    return kind if shape[-1] % block == 0 else "f16"


def _size_label(tensors: list[Planned]) -> str:
    """Parameters in words, "13M", or "8x7B" of experts and what a token passes of them."""
    total = shared = each = 0
    counts = []
    for tensor in tensors:
        n = math.prod(tensor.shape)
        total += n
        if "_exps." in tensor.name:
            counts.append(tensor.shape[0])
            each += n // tensor.shape[0]
        else:
            shared += n
    return gguf.size_label(total, shared, each, sum(counts) // len(counts) if counts else 0)


def _vocabulary(
    family: Family, source: Path, config: Config, tokenizer: bool, pre: str
) -> dict[str, Any]:
    if tokenizer:
        return vocabulary_keys(source, config, pre)
    size = {f"{family.arch}.vocab_size": config.integer("vocab_size")}
    return size | no_vocabulary_keys(config)


def _write(
    target: Path,
    arch: str,
    keys: dict[str, Any],
    extra: dict[str, np.ndarray],
    tensors: list[Planned],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write beside the target, check as loading does, and give it its name."""
    total = sum(tensor.nbytes for tensor in tensors)
    with replacing(target, total + _BYTES_OF_DATA) as unfinished:
        _fill(unfinished, arch, keys, extra, tensors, progress or (lambda done, total: None))
        _check(unfinished, target)


def _fill(
    path: Path,
    arch: str,
    keys: dict[str, Any],
    extra: dict[str, np.ndarray],
    tensors: list[Planned],
    progress: Callable[[int, int], None],
) -> None:
    writer = GGUFWriter(path, arch)
    for key, value in keys.items():
        _add(writer, key, value)
    for name, array in extra.items():
        writer.add_tensor_info(name, array.shape, array.dtype, array.nbytes)
    for tensor in tensors:
        kind = np.dtype(np.float32)  # tells that the shape is one of elements, not of bytes
        writer.add_tensor_info(tensor.name, tensor.shape, kind, tensor.nbytes, tensor.stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    try:
        assert writer.fout is not None
        (file,) = writer.fout
        writer.write_padding(file, file.tell())
        for array in extra.values():
            _put(writer, file, [array], array.nbytes)
        for tensor in tensors:
            _put(writer, file, _values(tensor), tensor.nbytes)
            done += tensor.nbytes
            progress(done, total)
    finally:
        writer.close()


def _values(tensor: Planned) -> Iterator[Array]:
    """The pieces of a tensor. Raises ModelError where the sizes of config.json do not fit it."""
    try:
        yield from tensor.pieces()
    except ModelError:
        raise
    except ValueError as error:
        raise _misfit(tensor.sources[0], f"does not fit config.json ({error})") from None


def _put(writer: GGUFWriter, file: BinaryIO, pieces: Any, nbytes: int) -> None:
    written = sum(file.write(np.ascontiguousarray(piece).data.cast("B")) for piece in pieces)
    assert written == nbytes, (written, nbytes)
    writer.write_padding(file, nbytes)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _check(path: Path, target: Path) -> None:
    """Refuse a file that could not be loaded, in words about the target."""
    try:
        file = open_gguf(path)
        table = file.tensors.get("token_embd.weight")
        arch = find_architecture(file)(file, table.shape[0] if table else 0)
        check_tensors(arch, file)
    except ModelError as error:
        told = str(error).replace(str(path), str(target))
        raise ModelError(f"{told}; the checkpoint may be of another kind than it says") from None
