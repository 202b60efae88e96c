"""A new quantised type as docs/adding-a-quantised-type.md adds it: its codec and two lists make the
reference run it, and the kernels of the page compile and decode to the codec's bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from linked_tree import make_tree
from pages import blocks
from paths import ROOT

PAGE = "docs/adding-a-quantised-type.md"
NAME = "tq2_0"
LISTS = {"ops/mul_mat.py": '"iq3_s"),\n)', "ops/get_rows.py": '"iq3_s"),\n)'}

SCRIPT = """
import sys
from pathlib import Path
import gguf
import numpy as np
import riverrun as rr
from gguf import GGMLQuantizationType, quants
from riverrun.backends import open_backend
from riverrun.backends.harness import run_case
from riverrun.graph import OPS, codec
from riverrun.graph.case import op_cases
from riverrun.graph.dtype import BY_NAME
import riverrun.models.quant
import riverrun.ops

d, rng = BY_NAME["tq2_0"], np.random.default_rng(0)
raw = rng.integers(0, 256, (5, 3, d.nbytes), np.uint8)
raw[:, :, 64:] = rng.standard_normal((5, 3, 1)).astype("<f2").view(np.uint8)
raw = raw.reshape(5, -1)
want = quants.dequantize(raw, GGMLQuantizationType.TQ2_0)
got = codec.decode(d, raw, (5, 768))
np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
raw.tofile(sys.argv[1] + ".raw")
got.tofile(sys.argv[1] + ".f32")
x = rng.standard_normal((4, 512)).astype(np.float32)
again = codec.decode(d, codec.encode(d, x), x.shape)
peak = np.abs(x.reshape(4, 2, 256)).max(-1)
assert (np.abs(again - x).reshape(4, 2, 256).max(-1) <= 0.501 * peak).all()
for name in ("mul_mat", "mul_mat_id", "get_rows"):
    cases = [c for c in op_cases(OPS[name]) if "tq2_0" in c.id and "perf" not in c.tags]
    found = [run_case(open_backend("reference"), c) for c in cases]
    assert cases and {r.status for r in found} == {"passed"}, found
print("read")
"""

DECODE = """
#include <cstdio>
#include <vector>
int main(int, char** argv) {
  std::vector<uint8_t> raw(5 * 3 * 66 + 16);
  std::vector<float> want(5 * 768), got(5 * 768);
  FILE* f = fopen(argv[1], "rb");
  if (!f || fread(raw.data(), 1, 5 * 3 * 66, f) != 5 * 3 * 66) return 2;
  f = fopen(argv[2], "rb");
  if (!f || fread(want.data(), 4, want.size(), f) != want.size()) return 2;
  for (int64_t i = 0; i < 15; ++i) DECODE_BLOCK(raw.data() + 66 * i, got.data() + 256 * i);
  for (size_t i = 0; i < got.size(); ++i)
    if (memcmp(&got[i], &want[i], 4)) return printf("%zu: %g, %g", i, got[i], want[i]), 1;
}
"""
ON_CPU = """#include "decode.hpp"
#define DECODE_BLOCK(b, out) decode_blocks<RR_TQ2_0>(b, out, 256)
"""
ON_CARD = """#include "decode.cuh"
#define DECODE_BLOCK(b, out) \\
  for (int j = 0; j < 8; ++j) decode32<RR_TQ2_0>(b, j, out + 32 * j)
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes of blocks and their values, as the codec of the page reads them in a tree of links."""
    top = tmp_path_factory.mktemp("type")
    files = {f"models/quant/{NAME}.py": blocks(PAGE, "python")[0]}
    for path, end in LISTS.items():
        text = (ROOT / path).read_text()
        assert text.count(end) == 1
        files[path] = text.replace(end, end.replace('"iq3_s"', f'"iq3_s", "{NAME}"'))
    tree = make_tree(top / "package", files)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(top / "blocks")],
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
    return top / "blocks"


def test_its_codec_and_the_lists_make_the_reference_run_it(read: Path) -> None:
    assert read.with_suffix(".f32").stat().st_size == 4 * 5 * 768


def compiled(source: Path, flags: list[str], parts: tuple[str, ...]) -> None:
    """Compile with the id that the page gives to the type."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    includes = [f"-I{ROOT / 'csrc' / part}" for part in ("include", "common", *parts)]
    command = [compiler, "-std=gnu++17", "-DRR_TQ2_0=35u", "-Wall", "-Wextra", "-Wno-psabi"]
    command += ["-Wno-unknown-pragmas", "-Wno-unused", *flags, *includes, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("card", [False, True], ids=["cpu", "cuda"])
def test_the_block_of_the_page_gives_the_bits_of_the_codec(
    read: Path, tmp_path: Path, card: bool
) -> None:
    source, program = tmp_path / "decode.cpp", tmp_path / "decode"
    source.write_text(blocks(PAGE, "cpp")[0] + (ON_CARD if card else ON_CPU) + DECODE)
    flags = ["-ffp-contract=off", "-o", str(program)]
    flags += ["-DRR_EMULATE", "-x", "c++"] if card else []
    compiled(source, flags, ("cuda", "emulate") if card else ("cpu",))
    command = [program, read.with_suffix(".raw"), read.with_suffix(".f32")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def together(*numbers: int) -> str:
    """The page's blocks of C++ that have these numbers, as one file."""
    found = blocks(PAGE, "cpp")
    return "".join(found[number] for number in numbers)


def test_the_product_of_the_page_for_cards_compiles(tmp_path: Path) -> None:
    source = tmp_path / f"mul_mat_{NAME}.cu"
    source.write_text(together(0, 2))
    compiled(source, ["-DRR_EMULATE", "-fsyntax-only", "-x", "c++"], ("cuda", "emulate"))


@pytest.mark.parametrize("flags", [[], ["-mavx2", "-mfma", "-mf16c"]], ids=["base", "avx2"])
def test_the_product_of_the_page_compiles(tmp_path: Path, flags: list[str]) -> None:
    if flags and os.uname().machine != "x86_64":
        pytest.skip("flags of another processor")
    source = tmp_path / f"mul_mat_{NAME}.cpp"
    source.write_text(together(0, 1))
    compiled(source, ["-O1", "-fsyntax-only", *flags], ("cpu",))
