"""The command `quantize`."""

from __future__ import annotations

from pathlib import Path

import pytest
import riverrun
from cli import run_cli
from demo import DEMO
from gguf_bytes import Image, info, scalar
from riverrun.graph.unread_types import REFUSED
from riverrun.models.gguf import open_gguf


def test_the_demo_in_another_mix_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run_cli(
        capsys, "quantize", DEMO, out, "q6_k", "--allow-requantize", "-t", 1,
        "--tensor-type", "attn_output=q8_0",
    )  # fmt: skip
    assert (done.code, done.out) == (0, "") and "bits a weight" in done.err
    file = open_gguf(out)
    assert file.tensors["blk.0.ffn_down.weight"].dtype.name == "q6_k"
    assert file.tensors["blk.3.attn_output.weight"].dtype.name == "q8_0"
    text = [
        "".join(riverrun.load(path, "cpu", 1).generate("def f(", max_tokens=8, temperature=0))
        for path in (out, DEMO)
    ]
    assert text[0] == text[1]


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = run_cli(capsys, "quantize", DEMO, tmp_path / "out.gguf", "Q4_K_M", "--dry-run")
    assert done.code == 0 and not list(tmp_path.iterdir())
    lines = done.out.splitlines()
    assert lines[-1].endswith("bits a weight")
    assert len(lines) == 1 + len(open_gguf(DEMO).tensors)
    assert any(line.startswith("token_embd.weight") and "q6_k" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("{demo}", "{out}", "Q9"), 2, "expected one of F32"),
        (("{demo}", "{out}", "Q4_K_M", "--tensor-type", "q8_0"), 2, "expected REGEX=TYPE"),
        (("{demo}", "{out}", "Q4_K_M", "--tensor-type", "(=q8_0"), 2, "regular expression"),
        (("{demo}", "{out}", "Q4_K_M", "--tensor-type", "attn=iq1_s"), 2, "no encoder"),
        (("{demo}", "{out}", "Q4_K_M"), 1, "--allow-requantize"),
        (("{demo}", "{demo}", "Q4_K_M"), 2, "another file"),
        (("{demo}", "{there}", "Q8_0", "--allow-requantize"), 1, "--force"),
        (("{none}", "{out}", "Q8_0"), 1, "no such file"),
        (("{there}", "{out}", "Q8_0"), 1, "magic"),
        (("{demo}", "{out}", "Q8_0", "--imatrix", "{there}"), 1, "importance matrix"),
        (("{demo}", "{out}", "Q8_0", "--imatrix", "{none}"), 1, "cannot be read"),
        (("{demo}", "{none}/x.gguf", "Q8_0", "--allow-requantize"), 1, "is not there"),
    ],
)
def test_refusals(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    (tmp_path / "there.gguf").write_bytes(b"mine, not a model")
    names = {"demo": DEMO, "out": tmp_path / "out.gguf", "none": tmp_path / "none"}
    names["there"] = tmp_path / "there.gguf"
    done = run_cli(capsys, "quantize", *(a.format(**names) for a in arguments))
    assert done.is_short_error(code) and told in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["there.gguf"]


def test_a_source_of_a_type_that_is_not_read_gets_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = [scalar("general.architecture", "str", "llama"), scalar("llama.block_count", "u32", 1)]
    image = Image(keys, [info("blk.0.attn_q.weight", (256, 4), 19, 0)], bytes(4 * 50 + 24))
    done = run_cli(
        capsys, "quantize", image.write(tmp_path / "m.gguf"), tmp_path / "out.gguf", "Q8_0",
        "--allow-requantize",
    )  # fmt: skip
    assert done.is_short_error(1), done
    assert f"blk.0.attn_q.weight is iq1_s: {REFUSED['iq1_s']}" in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
