"""From a checkpoint's folder to a GGUF file: what goes where, in which types, and the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...graph.codec import encode
from ...graph.dtype import DType, dtype
from ...graph.errors import DTypeError, GgufError, ModelError, RequestError
from ..gguf import (
    QUANTIZATION_VERSION,
    Field,
    NewTensor,
    new_fields,
    open_gguf,
    write_gguf,
)
from ..gguf.pages import give_back
from ..gguf.target import check_target
from ..load import read_model
from ..quantizing import find_mix, fit_rows, is_quantized
from ..tokenizer.pretokenizers import find_pretokenizer
from .checkpoint import Array, Checkpoint, Shape, Source
from .config import Config
from .family import Family, Table, To, find_family
from .json_files import optional_json
from .size_label import size_label
from .specials import GENERATION, sampling_keys
from .transforms import SAME, Transform
from .vocabulary import NO_VOCABULARY, vocabulary_keys

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")


@dataclass(frozen=True)
class Planned:
    """A tensor of the file: name, shape, stored type, and what its values come from."""

    name: str
    shape: Shape
    dtype: DType
    how: Transform
    sources: Sequence[Source]

    def pieces(self) -> Iterator[Array]:
        """What goes into the file, in order. What was read for a piece leaves memory when the next
        one is asked for. Raises ModelError for values that do not fit the type, and where the sizes
        of config.json do not fit the tensor."""
        mapped = {id(source.mapped): source.mapped for source in self.sources}
        for piece in self._made():
            yield piece
            for of in mapped.values():
                give_back(of)

    def _made(self) -> Iterator[Array]:
        source = self.sources[0]
        if self.how is SAME and source.kind.lower() == self.dtype.name:
            yield from (source.stored(*rows) for rows in source.blocks())
            return
        try:
            with np.errstate(over="raise"):
                for piece in self.how.pieces(self.sources):
                    yield piece if piece.dtype == np.uint8 else encode(self.dtype, piece)
        except ModelError:
            raise
        except (DTypeError, FloatingPointError) as error:
            why = f"does not fit {self.dtype.name} ({error}); choose another --outtype"
            raise _misfit(source, why) from None
        except ValueError as error:
            raise _misfit(source, f"does not fit config.json ({error})") from None


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
    RequestError for arguments and for a file that cannot be written, ModelError for a checkpoint
    that cannot be converted, naming the key or tensor, and OSError for one that cannot be read."""
    source, target = Path(folder), Path(out)
    if outtype not in OUTTYPES:
        raise RequestError(f"outtype: expected one of {', '.join(OUTTYPES)}, got {outtype!r}")
    if not source.is_dir():
        raise RequestError(f"{source}: expected the folder of a Hugging Face checkpoint")
    check_target(target, force, source.iterdir())
    if pre:
        find_pretokenizer(pre, "pre")
    config = Config.read(source)
    kin = find_family(config)
    checkpoint = Checkpoint(source)
    family = kin(config, checkpoint.tensors, mtp)
    keys = {f"{family.arch}.{key}": value for key, value in family.keys().items()}
    keys |= _vocabulary(family, source, config, tokenizer, pre)
    kind = checkpoint.kind.lower() if outtype == "auto" else outtype
    kind = "f32" if kind == "f64" else kind
    tensors = plan(family, checkpoint, kind)
    keys = {
        "general.architecture": family.arch,
        "general.type": "model",
        "general.name": name or source.resolve().name,
        "general.size_label": size_label({t.name: t.shape for t in tensors}),
        **_recommended(source),
        **keys,
        "general.file_type": find_mix(kind).file_type,
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    write_gguf(
        target,
        _fields(source, keys),
        [*_extra(family), *(NewTensor(t.name, t.shape, t.dtype, t.pieces) for t in tensors)],
        force=force,
        progress=progress,
        check=partial(_check, target),
    )
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
    stored = to.kind or (fit_rows(kind, shape[-1]) if is_quantized(name, shape) else "f32")
    return Planned(name, shape, dtype(stored), to.how, sources)


def _misfit(source: Source, why: str) -> ModelError:
    return ModelError(f"{source.path}: tensor {source.name!r} {source.shape}: {why}")


def _fields(source: Path, keys: dict[str, Any]) -> dict[str, Field]:
    try:
        return new_fields(keys)
    except GgufError as error:
        raise ModelError(f"{source}: {error}") from None


def _vocabulary(
    family: Family, source: Path, config: Config, tokenizer: bool, pre: str
) -> dict[str, Any]:
    if tokenizer:
        return vocabulary_keys(source, config, pre)
    return {f"{family.arch}.vocab_size": config.integer("vocab_size"), **NO_VOCABULARY}


def _recommended(source: Path) -> dict[str, Any]:
    return sampling_keys(optional_json(source / "generation_config.json", GENERATION))


def _extra(family: Family) -> Iterable[NewTensor]:
    for name, values in family.extra():
        yield NewTensor(name, values.shape, dtype("f32"), partial(iter, [values]))


def _check(target: Path, path: Path) -> None:
    """Refuse a file that could not be loaded, in words about the target."""
    try:
        with open_gguf(path) as file:
            read_model(file)
    except ModelError as error:
        told = str(error).replace(str(path), str(target))
        raise ModelError(f"{told}; the checkpoint may be of another kind than it says") from None
