"""Codecs of the quantised types: one file per format, each registers itself in graph.codec.

Block layouts are those of the ggml tensor format; a format is added by adding a file. Files whose
name starts with an underscore hold what several formats share."""

from importlib import import_module
from pkgutil import iter_modules

for _name in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_name}")
