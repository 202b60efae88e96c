"""Models that were quantised as a whole: blocks that draft stay, and heads that are the embedding
are read in its type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from riverrun.backends.cpu_blocks import BlockRecoder
from riverrun.graph.codec import decode
from riverrun.graph.dtype import dtype
from riverrun.models.gguf import NewTensor, fields_of, open_gguf, write_gguf
from riverrun.models.quantizing import find_mix, plan, quantize
from tiny_models import VARIANTS

TOKENS = [5, 17, 3, 60, 8, 21, 2]
DRAFTING = [name for name in VARIANTS if name.endswith(",mtp")]
TIED = ["llama,tied", "qwen3", "gemma3", "qwen35,v=2k,tied"]
MIXES = ("BF16", "Q8_0", "Q5_1", "Q4_0", "IQ4_NL")


def quantised(folder: Path, variant: str, mix: str) -> tuple[Path, Path]:
    """A model file and what quantising makes of it."""
    source = VARIANTS[variant]().write(folder / "source.gguf")
    file, out = open_gguf(source), folder / "out.gguf"
    chosen = find_mix(mix)
    quantize(file, out, chosen, plan(file, chosen, (), False), BlockRecoder(1))
    return source, out


def logits(path: Path) -> np.ndarray:
    session = rr.load(path, "reference").session(64)
    return session.evaluate([(0, TOKENS)], want="all").logits.copy()


def as_floats(path: Path, out: Path) -> Path:
    """The same file with all tensors decoded."""
    file = open_gguf(path)

    def tensor(name: str) -> NewTensor:
        held = file.tensors[name]
        values = decode(held.dtype, held.data, held.shape).astype(np.float32)
        return NewTensor(name, held.shape, dtype("f32"), lambda: [values])

    write_gguf(out, fields_of(file.metadata), [tensor(name) for name in file.tensors])
    return out


@pytest.mark.parametrize("mix", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("variant", DRAFTING)
def test_blocks_that_draft_are_kept(tmp_path: Path, variant: str, mix: str) -> None:
    """All their tensors, matrices in the types of the mix; drafts change no token."""
    source, out = quantised(tmp_path, variant, mix)
    before, after = open_gguf(source), open_gguf(out)
    assert set(after.tensors) == set(before.tensors)
    assert any(".nextn." in name for name in after.tensors)
    (joined,) = (t for name, t in after.tensors.items() if name.endswith("nextn.eh_proj.weight"))
    assert joined.dtype.name == mix.lower()
    model = rr.load(out, "cpu", 1)
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "n_ctx": 64}
    plain = model.generate(TOKENS, **options).result
    drafted = model.generate(TOKENS, speculative="mtp", **options).result
    assert drafted.tokens == plain.tokens and drafted.timings["draft_n"] > 0


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("variant", TIED)
def test_a_tied_head_has_the_type_of_the_embedding(tmp_path: Path, variant: str, mix: str) -> None:
    _, out = quantised(tmp_path, variant, mix)
    file = open_gguf(out)
    assert "output.weight" not in file.tensors
    assert file.tensors["token_embd.weight"].dtype.name != "f32"
    got, want = logits(out), logits(as_floats(out, tmp_path / "floats.gguf"))
    assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want)
