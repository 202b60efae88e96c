"""The GGUF container: a mapped, fully checked view of a model file or of a set of shards."""

from .metadata import Metadata
from .shards import GgufFile, open_gguf
from .tensors import GgufTensor, TensorInfo
from .typed import INT_KINDS, REQUIRED
from .writer import (
    QUANTIZATION_VERSION,
    Field,
    NewTensor,
    array,
    fields_of,
    new_fields,
    scalar,
    stored_bytes,
    write_gguf,
)

__all__ = [
    "INT_KINDS",
    "QUANTIZATION_VERSION",
    "REQUIRED",
    "Field",
    "GgufFile",
    "GgufTensor",
    "Metadata",
    "NewTensor",
    "TensorInfo",
    "array",
    "fields_of",
    "new_fields",
    "open_gguf",
    "scalar",
    "stored_bytes",
    "write_gguf",
]
