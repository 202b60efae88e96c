"""The GGUF container: a mapped, fully checked view of a model file or of a set of shards."""

from .metadata import Metadata
from .shards import GgufFile, open_gguf
from .tensors import GgufTensor, TensorInfo
from .typed import INT_KINDS, REQUIRED

__all__ = ["INT_KINDS", "REQUIRED", "GgufFile", "GgufTensor", "Metadata", "TensorInfo", "open_gguf"]
