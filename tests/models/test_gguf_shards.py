"""Models in shards: found by name, checked as a set."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import Image, info, scalar
from riverrun.graph.errors import GgufError
from riverrun.models import load_file
from riverrun.models.gguf import open_gguf
from tiny_models import VARIANTS


def shard(no: int, count: int, names: str, total: int | None = 3) -> Image:
    """Shard `no` with an f32 tensor [8] of value-bytes `no` per letter of names. total: tensors of
    the set, None for no such key."""
    keys = [scalar("split.no", "u16", no), scalar("split.count", "u16", count)]
    if total is not None:
        keys.append(scalar("split.tensors.count", "i32", total))
    infos = [info(name, (8,), 0, 32 * i) for i, name in enumerate(names)]
    return Image(keys, infos, bytes([no]) * 32 * len(names))


def write(folder: Path, images: list[Image], prefix: str = "m") -> Path:
    """Write a set; give the first path back."""
    count = len(images)
    for i, image in enumerate(images):
        image.write(folder / f"{prefix}-{i + 1:05d}-of-{count:05d}.gguf")
    return folder / f"{prefix}-00001-of-{count:05d}.gguf"


def sound_set() -> list[Image]:
    return [shard(0, 3, ""), shard(1, 3, "ba"), shard(2, 3, "c")]


def refuse(path: Path, *parts: str) -> None:
    with pytest.raises(GgufError) as caught:
        open_gguf(path)
    for part in parts:
        assert part in str(caught.value)


def test_set_opens_as_one(tmp_path: Path) -> None:
    path = write(tmp_path, sound_set(), "a-00001-of-00002.gguf x")
    with open_gguf(path) as f:
        assert list(f.tensors) == ["b", "a", "c"]
        assert [int(t.data[0]) for t in f.tensors.values()] == [1, 1, 2]
        assert [t.shard_path for t in f.tensors.values()] == [f.shard_paths[i] for i in (1, 1, 2)]
        assert f.path == path and f.get_scalar("split.count", "u16") == 3
        f.check_tensors()


@pytest.mark.parametrize("count", [0, 1])
def test_count_below_two_is_one_file(tmp_path: Path, count: int) -> None:
    assert list(open_gguf(shard(5, count, "a").write(tmp_path / "any.gguf")).tensors) == ["a"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_set_opens_from_any_of_its_shards(tmp_path: Path, number: int) -> None:
    first = write(tmp_path, sound_set())
    f = open_gguf(tmp_path / f"m-{number:05d}-of-00003.gguf")
    assert f.path == first and [p.name[2:7] for p in f.shard_paths] == ["00001", "00002", "00003"]
    assert [int(t.data[0]) for t in f.tensors.values()] == [1, 1, 2]
    assert f.get_scalar("split.no", "u16") == 0


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["m.gguf", "m-00001-of-00002.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf"]
)
def test_a_shard_needs_the_name_of_its_place(tmp_path: Path, index: int, name: str) -> None:
    path = sound_set()[index].write(tmp_path / name)
    refuse(path, f"shard {index + 1} of 3", f"named <prefix>-{index + 1:05d}-of-00003.gguf", name)


def test_a_shard_under_the_name_of_another(tmp_path: Path) -> None:
    images = sound_set()
    path = write(tmp_path, [images[0], images[2], images[1]])
    refuse(path, "m-00002-of-00003.gguf", "'split.no' must be 1 in shard 2 of 3, got 2")
    refuse(tmp_path / "m-00003-of-00003.gguf", "shard 2 of 3", "got 'm-00003-of-00003.gguf'")


def test_missing_shard(tmp_path: Path) -> None:
    path = write(tmp_path, sound_set())
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    refuse(path, "m-00003-of-00003.gguf", "no such file")


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, sound_set())
    last = tmp_path / "m-00003-of-00003.gguf"
    last.write_bytes(last.read_bytes()[:-1])
    refuse(path, "m-00003-of-00003.gguf", "'c'", "within the file")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({1: shard(2, 3, "ba")}, ["m-00002-of", "'split.no' must be 1", "got 2"]),
        ({2: shard(2, 4, "c")}, ["m-00003-of", "'split.count' must be 3", "got 4"]),
        (
            {2: Image([], [info("c", (8,), 0, 0)], bytes(32))},
            ["m-00003-of", "'split.no' is missing"],
        ),
        ({2: shard(2, 3, "b")}, ["'b'", "m-00002-of-00003.gguf too"]),
        *(
            ({at: shard(at, 3, names, total)}, [f"m-0000{at + 1}-of", "'split.tensors.count'", got])
            for at, names in enumerate(("", "ba", "c"))
            for total, got in ((4, "3, got 4"), (0, "3, got 0"), (-1, "3, got -1"), (None, "none"))
        ),
        ({0: Image([scalar("split.count", "u32", 3)])}, ["'split.count'", "u16, got u32"]),
        ({0: Image([scalar("split.count", "u16", 3)])}, ["'split.no' is missing"]),
    ],
)
def test_sets_that_do_not_fit(tmp_path: Path, change: dict[int, Image], parts: list[str]) -> None:
    images = [change.get(i, image) for i, image in enumerate(sound_set())]
    refuse(write(tmp_path, images), *parts)


def test_unknown_type_in_a_later_shard_leaves_metadata_readable(tmp_path: Path) -> None:
    images = sound_set()
    images[2].infos = [info("c", (8,), 250, 0)]
    f = open_gguf(write(tmp_path, images))
    assert [row.type_name for row in f.infos.values()] == ["f32", "f32", "type 250"]
    assert f.get_scalar("split.count", "u16") == 3
    with pytest.raises(GgufError, match=r"m-00003-of-00003\.gguf: tensor 'c' has type id 250"):
        _ = f.tensors


def test_views_of_all_shards_outlive_close(tmp_path: Path) -> None:
    f = open_gguf(write(tmp_path, sound_set()))
    views = [t.data for t in f.tensors.values()]
    f.close()
    assert [int(v.sum()) for v in views] == [32, 32, 64]


def test_a_set_of_which_shards_are_cut_counts_what_they_lack(tmp_path: Path) -> None:
    path = write(tmp_path, sound_set())
    for number, n in ((2, 40), (3, 1)):
        shard = tmp_path / f"m-{number:05d}-of-00003.gguf"
        shard.write_bytes(shard.read_bytes()[:-n])
    refuse(path, "m-00002-of-00003.gguf", "lacks its last 40 bytes")
    f = open_gguf(path, whole=False)
    assert (f.missing_bytes, list(f.infos)) == (41, ["b", "a", "c"])
    with pytest.raises(GgufError, match="lacks its last 40 bytes"):
        _ = f.tensors


def test_a_model_that_the_gguf_package_split(tmp_path: Path) -> None:
    """Loads from any of its files, and is the same model."""
    whole = VARIANTS["llama"]()
    one = load_file(whole.write(tmp_path / "one.gguf"))
    read = gguf.GGUFReader(one.path)
    writer = gguf.GGUFWriter(tmp_path / "many.gguf", "llama", split_max_tensors=9)
    for name, value in whole.keys.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"llama.{name}", value)
    writer.add_tokenizer_model("none")
    for t in read.tensors:
        writer.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("many-*"))
    assert len(paths) == 3
    for path in paths:
        found = load_file(path)
        assert found.path == paths[0] and found.fingerprint == one.fingerprint
        assert all(np.array_equal(found.weights[n].raw, w.raw) for n, w in one.weights.items())
