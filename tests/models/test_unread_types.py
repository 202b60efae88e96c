"""Types that no weights are read in: every type of the format is read or refused with its own
reason, and the refusal names the tensors and what helps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import riverrun as rr
from riverrun.graph.codec import has_codec
from riverrun.graph.dtype import BY_GGML_ID, BY_NAME
from riverrun.graph.errors import ModelError
from riverrun.graph.unread_types import NAMES, REFUSED
from riverrun.models.architecture import check_tensors
from riverrun.models.gguf import GgufFile
from riverrun.ops.mul_mat import WEIGHT_TYPES
from tiny_models import VARIANTS


def test_every_type_of_the_format_is_read_or_refused() -> None:
    by_id = {number: d.name for number, d in BY_GGML_ID.items()}
    assert not by_id.keys() & NAMES.keys()
    known = {*by_id.values(), *NAMES.values()}
    assert known - set(WEIGHT_TYPES) == set(REFUSED)
    assert all(has_codec(BY_NAME[name]) for name in WEIGHT_TYPES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> rr.Model:
    return rr.load(VARIANTS["llama"]().write(tmp_path_factory.mktemp("m") / "m.gguf"), "cpu", 1)


@pytest.mark.parametrize("kind", REFUSED)
def test_the_refusal_has_the_reason_of_its_type(model: rr.Model, kind: str) -> None:
    number = next(
        n
        for n, name in [*NAMES.items(), *((n, d.name) for n, d in BY_GGML_ID.items())]
        if name == kind
    )
    infos = dict(model.source.file.infos)
    for name in ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "output.weight"):
        infos[name] = replace(infos[name], type_id=number, dtype=BY_NAME.get(kind))
    file = cast(GgufFile, SimpleNamespace(path=Path("m.gguf"), infos=infos))
    with pytest.raises(ModelError) as caught:
        check_tensors(model.source.arch, file)
    why, remedy = REFUSED[kind]
    first = next(name for name, row in infos.items() if row.type_name == kind)
    assert str(caught.value) == (
        "m.gguf: tensors do not match architecture 'llama': of a type that is not read: "
        f"{first} and 2 more are {kind}, {why} ({remedy})"
    )


def test_each_reason_tells_a_type_that_is_read() -> None:
    for refusal in REFUSED.values():
        words = refusal.remedy.replace(",", " ").replace("'s", "").split()
        assert set(words) & set(WEIGHT_TYPES) or "checkpoint" in words
