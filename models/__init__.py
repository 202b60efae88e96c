"""Model files and their meaning: container, codecs, tokenizers, architectures."""

from typing import TYPE_CHECKING

from ..graph.late import late_codecs, late_names

if TYPE_CHECKING:
    from .load import ModelFile, load_file

__all__ = late_names(
    __name__,
    {
        ".load": "ModelFile load_file",
    },
)

late_codecs(f"{__name__}.quant")
