"""The compiled encoders against ggml's, and that what they give decodes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from riverrun.backends.cpu_blocks import BlockRecoder, can_encode
from riverrun.graph.codec import decode, encode
from riverrun.graph.dtype import BY_NAME, dtype
from riverrun.graph.errors import DTypeError

F32 = dtype("f32")
PLAIN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "bf16")
GRIDS = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
SEARCHED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", *GRIDS)
# ggml's encoders of larger grids begin with seconds of tables.
FOR_GGML = (
    *(n for n in (*PLAIN[:-1], *SEARCHED) if n not in ("iq2_xs", "iq2_s")),
    *(pytest.param(n, marks=pytest.mark.full) for n in ("iq2_xs", "iq2_s")),
)
WEIGHTED = ("q4_0", "q4_1", "q5_0", "q5_1", *SEARCHED)
N = 1024 + 256  # an odd number of blocks of 256


def values(name: str, kind: str = "normal", rows: int = 48) -> np.ndarray:
    """Values with blocks of zeros, of one value, and of values of one sign."""
    rng = np.random.default_rng(BY_NAME[name].ggml_id)
    x = rng.standard_normal((rows, N)) if kind == "normal" else rng.laplace(size=(rows, N))
    x[0, :256], x[1, 256:512], x[1, 512:768] = 0, 0.37, np.abs(x[1, 512:768])
    x[1, 0:32] = -1.5
    return (0.05 * x).astype(np.float32)


def importance(name: str) -> np.ndarray:
    rng = np.random.default_rng(BY_NAME[name].ggml_id + 100)
    return (rng.gamma(0.5, size=N) + 0.01).astype(np.float32)


def recoded(name: str, x: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    got = BlockRecoder(2)(x.view(np.uint8).reshape(-1), F32, dtype(name), x.shape[-1], weights)
    return got.reshape(len(x), -1)


def error(name: str, raw: np.ndarray, x: np.ndarray, weights: np.ndarray | None) -> float:
    got = decode(dtype(name), raw, x.shape).astype(np.float64)
    return float((np.square(got - x) * (1 if weights is None else weights)).sum())


@pytest.mark.parametrize("kind", ["normal", "laplace"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "importance"])
@pytest.mark.parametrize("name", FOR_GGML)
def test_errors_are_within_2_percent_of_ggml(name: str, weighted: bool, kind: str) -> None:
    libgguf = pytest.importorskip("libgguf", reason="needs ggml's quantisers (pip: libgguf)")
    x, weights = values(name, kind), importance(name) if weighted else None
    # Of these ggml has no encoder without an importance.
    given = np.ones(N, np.float32) if name in ("iq2_xxs", "iq2_xs") else None
    theirs = libgguf.quantize_rows(
        x,
        libgguf.GGMLQuantizationType(BY_NAME[name].ggml_id),
        imatrix=given if weights is None else weights,
    )
    want = error(name, np.asarray(theirs).view(np.uint8).reshape(len(x), -1), x, weights)
    assert error(name, recoded(name, x, weights), x, weights) <= 1.02 * want


@pytest.mark.parametrize("name", (*PLAIN[:-1], *SEARCHED))
def test_what_is_encoded_decodes_as_ggml_decodes_it(name: str) -> None:
    libgguf = pytest.importorskip("libgguf", reason="needs ggml's quantisers (pip: libgguf)")
    raw = recoded(name, values(name))
    want = libgguf.dequantize_rows(raw, libgguf.GGMLQuantizationType(BY_NAME[name].ggml_id))
    np.testing.assert_array_equal(
        decode(dtype(name), raw, (len(raw), N)), np.asarray(want).reshape(len(raw), N)
    )


@pytest.mark.parametrize("name", PLAIN)
def test_plain_types_are_those_of_the_codecs(name: str) -> None:
    x = values(name)
    np.testing.assert_array_equal(recoded(name, x), encode(dtype(name), x))


@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_is_as_good_as_the_codec(name: str) -> None:
    x = values(name, rows=8 if name in GRIDS else 48)
    sizes = np.abs(x)  # a search weighs errors of large values more
    want = error(name, encode(dtype(name), x), x, sizes)
    assert error(name, recoded(name, x), x, sizes) < 1.05 * want


@pytest.mark.parametrize("name", WEIGHTED)
def test_an_importance_lowers_the_error_that_it_weighs(name: str) -> None:
    x, weights = values(name), importance(name)
    with_it = error(name, recoded(name, x, weights), x, weights)
    assert with_it < 0.97 * error(name, recoded(name, x), x, weights)


@pytest.mark.parametrize("source", ["f16", "bf16", "q8_0", "q4_k"])
def test_other_sources_are_decoded_first(source: str) -> None:
    x = values("q6_k", rows=3)
    raw = encode(dtype(source), x)
    got = BlockRecoder(1)(raw.reshape(-1), dtype(source), dtype("q6_k"), N)
    held = np.ascontiguousarray(decode(dtype(source), raw, x.shape), np.float32)
    np.testing.assert_array_equal(got.reshape(3, -1), recoded("q6_k", held))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e9])
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "f16", "mxfp4"])
def test_values_that_no_block_holds_are_refused(name: str, bad: float) -> None:
    x = values(name, rows=5)
    x[3, 77] = bad
    with pytest.raises(DTypeError, match="row 3: values should be finite and below 1e9"):
        recoded(name, x)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q6_k", "iq4_xs", "iq2_xs", "iq3_s", "f16"])
def test_scales_beyond_f16_are_refused(name: str) -> None:
    x = values(name, rows=2)
    x[1, 300] = 9e8
    for weights in (None, importance(name)):
        with pytest.raises(DTypeError, match="row 1: values should be small enough for f16"):
            recoded(name, x, weights)


def test_types_without_encoder_and_odd_rows_are_refused() -> None:
    assert not can_encode(dtype("tq2_0"))
    raw = np.zeros(4 * N, np.uint8)
    with pytest.raises(DTypeError, match="tq2_0"):
        BlockRecoder(1)(raw, F32, dtype("tq2_0"), N)
    with pytest.raises(DTypeError, match="whole blocks of 256"):
        BlockRecoder(1)(raw, F32, dtype("q4_k"), 160)


DIGEST = """
import hashlib, sys, numpy as np
from riverrun.backends.cpu_blocks import BlockRecoder
from riverrun.graph.dtype import dtype
x = np.random.default_rng(5).laplace(size=(3, 1280)).astype(np.float32)
w = np.random.default_rng(6).gamma(0.5, size=1280).astype(np.float32)
recode = BlockRecoder(int(sys.argv[1]))
names = "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f16 bf16".split()
names += "iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s".split()
for weights in (None, w):
    for name in names:
        raw = recode(x.view(np.uint8).reshape(-1), dtype("f32"), dtype(name), 1280, weights)
        print(name, hashlib.sha256(raw.tobytes()).hexdigest())
"""


@pytest.mark.usefixtures("all_processors")
def test_instruction_sets_and_threads_give_the_same_blocks() -> None:
    def digests(isa: str, threads: str) -> str:
        call = [sys.executable, "-c", DIGEST, threads]
        env = {**os.environ, "RIVERRUN_ISA": isa}
        return subprocess.run(call, env=env, check=True, capture_output=True, text=True).stdout

    want = digests("base", "1")
    assert want.count("\n") == 40
    assert digests("avx2", "1") == digests("", "2") == want
