"""The command `synth`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import run_cli
from riverrun.models.gguf import open_gguf


def test_a_file_of_a_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run_cli(capsys, "synth", "tiny", "q4_k", out, "--mtp", "--seed", 3)
    assert (done.code, done.out) == (0, "") and "bytes" in done.err
    assert open_gguf(out).get_str("general.name") == "synthetic tiny"
    again = run_cli(capsys, "synth", "tiny", "q4_k", out)
    assert again.is_short_error(1) and "--force" in again.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("big", "Q4_K_M"), "expected one of tiny"),
        (("tiny", "Q4"), "expected one of F32"),
        (("tiny", "Q4_K_M", "--router", "odd"), "expected one of even, skewed"),
        (("tiny", "Q4_K_M", "--seed", "-1"), "--seed"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    shape, kind, *rest = arguments
    done = run_cli(capsys, "synth", shape, kind, tmp_path / "out.gguf", *rest)
    assert done.is_short_error(2) and told in done.err
