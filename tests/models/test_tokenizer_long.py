"""Long runs of one character class: linear time, flat stack, and the ids of the definition."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from paths import DEMO, shared
from riverrun.graph.errors import RequestError
from riverrun.models.gguf import open_gguf
from riverrun.models.tokenizer import Tokenizer, load_tokenizer
from tokenizer_samples import CONTROL, USER, bpe_metadata, plain_bpe, spm_metadata

RUNS = {
    "letters": "A",
    "spaces": " ",
    "newlines": "\n",
    "dots": ".",
    "cjk": "中",
    "marks": "\u0301",
}
# Ten times what a megabyte may take.
WATCHDOG_S = 20.0


@cache
def demo() -> tuple[Tokenizer, dict[tuple[str, str], int]]:
    with open_gguf(DEMO) as file:
        merges = file.metadata["tokenizer.ggml.merges"]
        assert isinstance(merges, list)
        left_right = (merge.split(" ") for merge in merges)
        ranks = {(left, right): rank for rank, (left, right) in enumerate(left_right)}
        return load_tokenizer(file.metadata, "demo"), ranks


def on_a_small_stack(work: Callable[[], list[int]]) -> list[int]:
    """Run `work` in a thread of 256 KiB stack, so that deep recursion would not survive."""
    result: list[int] = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: result.extend(work()))
        started = time.monotonic()
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert time.monotonic() - started < WATCHDOG_S
    return result


@pytest.mark.parametrize("char", RUNS.values(), ids=RUNS)
def test_runs_give_the_ids_of_the_definition(char: str) -> None:
    tokenizer, ranks = demo()
    for length in (*range(1, 40), 255, 400):
        pieces = plain_bpe(char * length, ranks)
        assert tokenizer.encode(char * length) == [tokenizer.token_id(p) for p in pieces]


@pytest.mark.parametrize("char", RUNS.values(), ids=RUNS)
def test_a_megabyte_of_one_character(char: str) -> None:
    tokenizer, _ = demo()
    text = char * (1_000_000 // len(char.encode()))
    ids = on_a_small_stack(lambda: tokenizer.encode(text, parse_special=True))
    assert tokenizer.decode(ids) == text
    # Merging goes from left to right, so that a long run starts as a shorter one does.
    assert ids[:16] == tokenizer.encode(char * 4096)[:16]


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "gpt-2", "default"])
def test_a_megabyte_with_other_pretokenizers(pre: str) -> None:
    tokenizer = load_tokenizer(bpe_metadata(pre=pre, add_bos_token=False), "m")
    for char in RUNS.values():
        text = char * (250_000 // len(char.encode())) + "a"
        ids = on_a_small_stack(lambda text=text: tokenizer.encode(text))  # type: ignore[misc]
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("char", RUNS.values(), ids=RUNS)
def test_a_megabyte_of_spm_text(char: str) -> None:
    tokenizer = load_tokenizer(spm_metadata(pieces=("▁▁", "▁▁▁▁", "..", "....")), "m")
    text = char * (1_000_000 // len(char.encode()))
    ids = on_a_small_stack(lambda: tokenizer.encode(text))
    assert tokenizer.decode(ids) == text


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_a_long_text_leaves_no_memory_behind() -> None:
    tokenizer, _ = demo()
    before = resident()
    assert len(tokenizer.encode("a " * 1_000_000)) > 1_000_000
    # Unless it is given back, some 300 MB stay.
    assert resident() - before < 100 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_long_texts_of_special_tokens() -> None:
    rows = tuple(("\n" * n, USER) for n in range(2, 32))
    names = tuple((f"<unused{n}>", CONTROL) for n in range(2000))
    tokenizer = load_tokenizer(bpe_metadata(specials=(*rows, *names)), "m")
    newlines = on_a_small_stack(lambda: tokenizer.encode("\n" * 310_001))
    assert newlines == [tokenizer.token_id("\n" * 31)] * 10_000 + [10]
    text = "".join(name for name, _ in names) * 20
    ids = on_a_small_stack(lambda: tokenizer.encode(text, parse_special=True))
    assert ids == [tokenizer.token_id(name) for name, _ in names] * 20
    near = "<unused" * 20_000
    assert len(on_a_small_stack(lambda: tokenizer.encode(near, parse_special=True))) > 20_000


def test_white_space_beyond_what_the_engine_can_step_back_is_refused() -> None:
    tokenizer, _ = demo()
    with pytest.raises(RequestError, match="at most 4000000 characters of white space"):
        tokenizer.encode("a" + " " * 4_000_001)


@pytest.mark.full
def test_the_longest_run_of_white_space_that_is_taken() -> None:
    tokenizer, _ = demo()
    text = " " * 3_999_999 + "a"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_runs_in_a_real_vocabulary() -> None:
    path = shared("vocab", "ggml-vocab-qwen35.gguf")
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata, str(path))
    for char in RUNS.values():
        text = char * (200_000 // len(char.encode()))
        ids = on_a_small_stack(lambda text=text: tokenizer.encode(text))  # type: ignore[misc]
        assert tokenizer.decode(ids) == text
