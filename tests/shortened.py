"""A smaller model made of the demo model: its first layers under its own head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter


def shorten(source: Path, path: Path, layers: int) -> Path:
    """Write the first layers of a model file, without blocks that predict further tokens."""
    reader = GGUFReader(source)
    arch = _value(reader.fields["general.architecture"])
    writer = GGUFWriter(path, arch)
    counts = {f"{arch}.block_count": layers, f"{arch}.nextn_predict_layers": 0}
    blocks = _value(reader.fields[f"{arch}.block_count"])
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds = list(field.types)
        sub_type = kinds[-1] if kinds[0] == GGUFValueType.ARRAY else None
        value = counts.get(name, _value(field))
        if sub_type and name.startswith(f"{arch}.") and len(value) == blocks:
            value = value[:layers]  # a value for each layer
        writer.add_key_value(name, value, kinds[0], sub_type)
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] != "blk" or int(parts[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _value(field: Any) -> Any:
    return field.contents()
