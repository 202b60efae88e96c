"""Lists in pages written by hand: what is not as it is in the registries is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT
from riverrun.models.architecture import architectures
from riverrun.tools import gen_docs, listed


def test_the_lists_are_right() -> None:
    assert listed.faults(ROOT) == []


CHANGES = {
    "architecture gone": (
        "README.md",
        ("`smollm3`, ", ""),
        ["README.md: row of architectures lacks smollm3"],
    ),
    "architecture of another name": (
        "README.md",
        ("`gpt-oss`;", "`gptoss`;"),
        [
            "README.md: row of architectures lacks gpt-oss",
            "README.md: row of architectures has gptoss, which is not there",
        ],
    ),
    "weights gone": ("README.md", ("q5_1, ", ""), ["README.md: row of weights lacks q5_1"]),
    "weights more": (
        "README.md",
        ("mxfp4, ", "mxfp4, nvfp4, "),
        ["README.md: row of weights has nvfp4, which is not there"],
    ),
    "outtype gone": (
        "docs/converting.md",
        ("`bf16`, ", ""),
        ["docs/converting.md: types of --outtype lacks bf16"],
    ),
    "checkpoint gone": (
        "docs/converting.md",
        ("| `Phi3ForCausalLM`", "| Phi3ForCausalLM"),
        ["docs/converting.md: table of checkpoints lacks Phi3ForCausalLM as phi3"],
    ),
    "checkpoint of another file": (
        "docs/converting.md",
        ("| `lfm2moe` |", "| `lfm2` |"),
        [
            "docs/converting.md: table of checkpoints lacks Lfm2MoeForCausalLM as lfm2moe",
            "docs/converting.md: table of checkpoints has Lfm2MoeForCausalLM as lfm2, which is "
            "not there",
        ],
    ),
}


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for page in (listed.README, listed.CONVERTING):
        (tmp_path / page).write_text((ROOT / page).read_text())
    return tmp_path


@pytest.mark.parametrize("case", CHANGES)
def test_a_difference_is_told(case: str, pages: Path) -> None:
    page, (before, after), told = CHANGES[case]
    text = (ROOT / page).read_text()
    assert text.count(before) == 1
    (pages / page).write_text(text.replace(before, after))
    assert listed.faults(pages) == told


def test_a_row_that_is_gone_is_a_list_of_nothing(pages: Path) -> None:
    (pages / "README.md").write_text("# riverrun\n")
    (pages / listed.CONVERTING).unlink()
    lacking = [fault for fault in listed.faults(pages) if "row of architectures lacks" in fault]
    assert len(lacking) == len(architectures())


def test_the_check_of_the_pages_fails(
    pages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pages)
    monkeypatch.setattr(gen_docs, "write_or_check", lambda *_: 0)
    monkeypatch.setattr(gen_docs.platform, "machine", lambda: "other")
    assert gen_docs.main(["--check"]) == 0
    (pages / "README.md").write_text((pages / "README.md").read_text().replace("`phi3`, ", ""))
    assert gen_docs.main(["--check"]) == 1
    assert "README.md: row of architectures lacks phi3" in capsys.readouterr().err
