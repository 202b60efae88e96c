"""Files of n-gram counts: round trips, the bytes themselves, and damage."""

from __future__ import annotations

import struct

import pytest
from ngram_rounds import ask, text_of
from riverrun.graph.errors import RequestError
from riverrun.speculative.ngram_cache import NgramCache
from riverrun.speculative.ngram_counts import Counts

DYNAMIC = range(1, 5)
GOOD = [7, 8, -1, -1, 2, 9, 3, 10, 1]  # 7 8 was followed by 9 three times and by 10 once


def read(path, sizes=DYNAMIC, n_vocab=None):
    return dict(Counts.read(path, sizes, n_vocab).items())


def words(path, *values):
    path.write_bytes(struct.pack(f"<{len(values)}i", *values))
    return path


def gram(*tokens):
    return struct.pack(f"={len(tokens)}i", *tokens)


def test_a_record_is_four_tokens_a_number_and_pairs(tmp_path):
    path = words(tmp_path / "counts", *GOOD, 1, 2, 3, 4, 1, 5, 6)
    expected = {gram(7, 8): [(9, 3), (10, 1)], gram(1, 2, 3, 4): [(5, 6)]}
    assert read(path) == expected


def test_what_is_saved(tmp_path):
    drafter = NgramCache()
    text = [1, 2, 3, 1, 2, 4, 1, 2, 4]
    drafter.observe(0, text, None, text)
    drafter.save(tmp_path / "counts")
    found = read(tmp_path / "counts")
    assert found[gram(1)] == [(2, 3)]
    assert found[gram(2)] == found[gram(1, 2)] == [(4, 2), (3, 1)]
    assert found[gram(4, 1, 2)] == [(4, 1)]
    assert found[gram(1, 2, 3, 1)] == [(2, 1)]
    assert sum(len(g) == 16 for g in found) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["counts"]


def test_a_save_holds_loaded_counts_and_all_living_sequences(tmp_path):
    path = words(tmp_path / "counts", *GOOD)
    drafter = NgramCache()
    drafter.load(path)
    drafter.load(words(tmp_path / "static", *GOOD[:4], 1, 11, 5), static=True)
    for seq, text in enumerate([[7, 8, 9], [7, 8, 12], [7, 8, 13]]):
        drafter.observe(seq, text, None, text)
    drafter.clear(2)
    drafter.save(path)
    assert dict(read(path))[gram(7, 8)] == [(9, 4), (10, 1), (12, 1)]
    drafter.save(path)
    assert dict(read(path))[gram(7, 8)] == [(9, 4), (10, 1), (12, 1)]


def test_loading_adds_and_stays_within_32_bits(tmp_path):
    path = words(tmp_path / "counts", *GOOD[:4], 2, 9, 2**31 - 2, 10, 1)
    drafter = NgramCache()
    drafter.load(path)
    drafter.load(path)
    drafter.save(path)
    assert read(path) == {gram(7, 8): [(9, 2**31 - 1), (10, 2)]}


@pytest.mark.parametrize("seed", range(4))
def test_round_trip(tmp_path, seed):
    text = text_of(seed, 400, alphabet=4)
    first, second = NgramCache(), NgramCache()
    first.observe(0, text, None, text)
    first.save(tmp_path / "a")
    second.load(tmp_path / "a")
    second.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    third = NgramCache()
    third.load(tmp_path / "b")
    for context in ([*text[-9:], t] for t in range(4)):
        assert ask(second, context) == ask(third, context)


def test_an_empty_file_holds_nothing(tmp_path):
    NgramCache().save(tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""
    assert read(tmp_path / "empty") == {}


@pytest.mark.parametrize(
    ("values", "expected", "got"),
    [
        ([7, 8, -1], "byte 0: expected a record of 5 words or more", "3"),
        ([*GOOD, 7], "byte 36: expected a record", "1"),
        (GOOD[:-1], "byte 16: expected 1 to 1 followers", "2"),
        ([*GOOD[:4], 2**31 - 1, 9, 1], "byte 16: expected 1 to 1 followers", str(2**31 - 1)),
        ([*GOOD[:4], 0], "byte 16: expected 1 to 0 followers", "0"),
        ([*GOOD[:4], -3, 1, 1], "byte 16: expected 1 to 1 followers", "-3"),
        ([-1, -1, -1, -1, 1, 9, 1], "byte 0: expected a token from 0", "-1"),
        ([7, -2, -1, -1, 1, 9, 1], "byte 4: expected a token from 0", "-2"),
        ([7, -1, 8, -1, 1, 9, 1], "byte 8: expected -1 behind the n-gram's end", "8"),
        ([*GOOD[:4], 1, -1, 1], "byte 20: expected a token from 0", "-1"),
        ([*GOOD[:4], 1, 9, 0], "byte 24: expected a count of 1 or more", "0"),
        ([*GOOD[:4], 2, 9, 1, 9, 1], "byte 28: expected each follower once", "token 9 again"),
        ([*GOOD, *GOOD], "byte 36: expected each n-gram once", r"\[7, 8\] again"),
    ],
)
@pytest.mark.parametrize("static", [False, True])
def test_damage_is_named_and_changes_nothing(tmp_path, values, expected, got, static):
    drafter = NgramCache()
    drafter.load(words(tmp_path / "good", *GOOD), static=static)
    drafter.save(tmp_path / "before")
    path = words(tmp_path / "bad", *values)
    with pytest.raises(RequestError, match=f"{path}: .*{expected}.*, got {got}"):
        drafter.load(path, static=static)
    drafter.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
    assert ask(drafter, [7, 8]) == [9]


def test_every_truncation_is_noticed(tmp_path):
    data = struct.pack("<18i", *GOOD, 1, 2, 3, 4, 2, 5, 6, 7, 8)
    for length in range(1, len(data)):
        if length == 4 * len(GOOD):
            continue
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(RequestError, match=r"cut: .*expected"):
            NgramCache().load(tmp_path / "cut")


def test_a_static_file_has_pairs_only(tmp_path):
    path = words(tmp_path / "counts", 7, 8, 9, -1, 1, 5, 1)
    NgramCache().load(path)
    with pytest.raises(RequestError, match="expected an n-gram of 2 to 2 tokens, got 3"):
        NgramCache().load(path, static=True)


def test_a_file_of_another_vocabulary_is_refused(tmp_path):
    path = words(tmp_path / "counts", *GOOD)
    NgramCache(n_vocab=11).load(path)
    with pytest.raises(RequestError, match="byte 28: expected a token from 0 to 9, got 10"):
        NgramCache(n_vocab=10).load(path)


def test_files_that_cannot_be_opened(tmp_path):
    drafter = NgramCache()
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RequestError, match=f"{path}: cannot read"):
            drafter.load(path)
    for path in (tmp_path / "no folder" / "counts", tmp_path):
        with pytest.raises(RequestError, match=f"{path}: cannot write"):
            drafter.save(path)
    assert list(tmp_path.parent.glob("*.part")) == []
