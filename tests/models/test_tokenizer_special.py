"""Special tokens: in texts, around texts, and as ends of a generation."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riverrun.graph.errors import RequestError
from riverrun.models.tokenizer import load_tokenizer
from riverrun.models.tokenizer.partition import Partition
from tokenizer_samples import CONTROL, NORMAL, UNKNOWN, UNUSED, USER, bpe_metadata, spm_metadata

CHAT = (("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER), ("<pad?>", UNKNOWN))


def test_control_tokens_only_when_asked_for() -> None:
    tokenizer = load_tokenizer(bpe_metadata(specials=CHAT), "m")
    start, end, think, pad = (tokenizer.token_id(text) for text, _ in CHAT)
    text = "<|im_start|>hello<think> a<pad?><|im_end|>"
    parsed = tokenizer.encode(text, parse_special=True)
    hello, a = tokenizer.token_id("hello"), tokenizer.token_id("Ġa")
    assert parsed == [start, hello, think, a, pad, end]
    safe = tokenizer.encode(text)
    assert think in safe
    assert not {start, end, pad} & set(safe)
    assert tokenizer.decode(safe) == text
    assert tokenizer.decode(parsed) == "hello<think> a"
    assert tokenizer.decode(parsed, special=True) == text


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_no_text_is_merged_into_a_control_token(pre: str) -> None:
    metadata = bpe_metadata(("s t", "o p"), (("stop", CONTROL),), pre=pre, add_bos_token=False)
    metadata["tokenizer.ggml.merges"] = ["s t", "o p", "st op"]
    tokenizer = load_tokenizer(metadata, "m")
    stop = tokenizer.token_id("stop")
    assert stop not in tokenizer.encode("stop")
    assert tokenizer.decode(tokenizer.encode("stop")) == "stop"
    assert tokenizer.encode("stop", parse_special=True) == [stop]


def test_spm_merges_no_control_token() -> None:
    metadata = spm_metadata(pieces=("<", "/", ">", "s>", "</"))
    tokenizer = load_tokenizer(metadata, "m")
    ids = tokenizer.encode("</s>", add_special=False)
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids) == "</s>"
    assert tokenizer.encode("</s>", add_special=False, parse_special=True) == [2]


def test_longest_special_token_wins_wherever_it_stands() -> None:
    partition = Partition([("abc", 1), ("cdefg", 2), ("fg", 3), ("x", 4)])
    assert list(partition.split("abcdefg")) == ["ab", 2]
    assert list(partition.split("abcfgx.")) == [1, 3, 4, "."]
    assert list(partition.split("")) == []
    assert list(partition.split("none")) == ["none"]


def test_spaces_around_special_tokens_are_swallowed_where_told() -> None:
    partition = Partition([("<L>", 1), ("<R>", 2)], frozenset({1}), frozenset({2}))
    assert list(partition.split("a \t<L> b <R>\n c")) == ["a", 1, " b ", 2, "c"]
    assert list(partition.split(" <L> <R> ")) == [1, " ", 2]


def fragments_one_token_at_a_time(text: str, tokens: dict[str, int]) -> list[str | int]:
    """The definition: for each token, longest first, cut all fragments at its occurrences."""
    parts: list[str | int] = [text]
    for token in sorted(tokens, key=lambda t: (-len(t.encode()), tokens[t])):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for i, piece in enumerate(part.split(token)):
                cut += [tokens[token]] * (i > 0) + [piece]
        parts = cut
    return [part for part in parts if part != ""]


MANY = {"<r" + str(i) + ">": 100 + i for i in range(120)} | {"<r1": 1, "aa": 2, "aaa": 3, "a<r": 4}


@settings(derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(["a", "<r1", "<r", "7", "1>", "aa", ">", "<r12>", "é"])))
def test_partition_equals_its_definition(parts: list[str]) -> None:
    text = "".join(parts)
    expected = fragments_one_token_at_a_time(text, MANY)
    assert list(Partition(MANY.items()).split(text)) == expected


def test_bos_and_eos_counts() -> None:
    for add_bos in (False, True):
        for add_eos in (False, True):
            metadata = spm_metadata(add_bos_token=add_bos, add_eos_token=add_eos)
            tokenizer = load_tokenizer(metadata, "m")
            ids = tokenizer.encode("hello")
            assert (ids.count(1), ids.count(2)) == (add_bos, add_eos)
            assert tokenizer.encode("") == [1] * add_bos + [2] * add_eos
            assert tokenizer.encode("", add_special=False) == []
            assert tokenizer.decode(ids) == "hello"
            assert (
                tokenizer.decode(ids, special=True) == "<s>" * add_bos + "hello" + "</s>" * add_eos
            )


def test_a_template_with_its_own_bos_keeps_it_and_warns() -> None:
    tokenizer = load_tokenizer(spm_metadata(), "m")
    with pytest.warns(UserWarning, match="starts with the BOS"):
        assert tokenizer.encode("<s>hello", parse_special=True)[:2] == [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = tokenizer.encode("<s>hello", add_special=False, parse_special=True)
    assert ids.count(1) == 1
    assert tokenizer.encode("<s>hello").count(1) == 1


@pytest.mark.parametrize("text", ["a", " a", "  a", "   ", "a ", " hello  a", "", "\n a"])
@pytest.mark.parametrize("prefix", [False, True])
def test_spaces_survive_at_the_start_and_after_special_tokens(text: str, prefix: bool) -> None:
    specials = (("<u>", USER), ("<c>", CONTROL))
    tokenizer = load_tokenizer(spm_metadata(specials=specials, add_space_prefix=prefix), "m")
    for whole in (text, f"<c>{text}", f"{text}<u>{text}<c>{text}", f"<u><u>{text}"):
        ids = tokenizer.encode(whole, parse_special=True)
        assert tokenizer.decode(ids, special=True).removeprefix("<s>") == whole


def test_space_prefix_ids() -> None:
    tokenizer = load_tokenizer(spm_metadata(specials=(("<u>", USER),)), "m")
    hello, bare, user = (tokenizer.token_id(t) for t in ("▁hello", "hello", "<u>"))
    assert tokenizer.encode("hello<u>hello") == [1, hello, user, hello]
    plain = load_tokenizer(spm_metadata(add_space_prefix=False), "m")
    assert plain.encode("hello") == [1, bare]
    assert plain.encode(" hello") == [1, hello]


ENDING = (
    *("<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "</s>"),
    *(
        "<|eom_id|>",
        "<eos>",
        "<end_of_turn>",
        "[EOT]",
        "[EOS]",
        "<|eot_id|>",
        "<｜end▁of▁sentence｜>",
    ),
)


def ends_of(specials: tuple[tuple[str, int], ...], **keys: object) -> set[str]:
    tokenizer = load_tokenizer(bpe_metadata(specials=specials, **keys), "m")
    kinds = [tokenizer.token_type(262 + i) for i in range(len(specials))]
    assert kinds == [kind for _, kind in specials]
    return {tokenizer.token_text(token) for token in tokenizer.eog_ids}


def test_ends_of_generation() -> None:
    others = (("<|fim_prefix|>", CONTROL), ("<x>", CONTROL), ("<stop>", CONTROL))
    specials = (*((text, CONTROL) for text in ENDING), *others)
    assert ends_of(specials) == {*ENDING}
    assert ends_of(specials, eos_token_id=262 + len(specials) - 1) == {*ENDING, "<stop>"}


@pytest.mark.parametrize("text", ENDING)
@pytest.mark.parametrize("kind", [NORMAL, USER, UNKNOWN, UNUSED])
def test_text_that_looks_like_an_end_is_text(text: str, kind: int) -> None:
    specials = ((text, kind), ("<stop>", CONTROL))
    assert ends_of(specials) == set()
    assert ends_of(specials, eos_token_id=263) == {"<stop>"}
    tokenizer = load_tokenizer(bpe_metadata(specials=specials, eos_token_id=263), "m")
    assert tokenizer.eot_id is None
    if kind != UNKNOWN:
        assert tokenizer.decode([262]) == text
    assert ends_of(specials, eot_token_id=262) == {text}


def test_html_of_a_sentencepiece_vocabulary() -> None:
    metadata = spm_metadata(specials=(("<eos>", CONTROL), ("<s>x", USER)))
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    types[2] = USER
    metadata["tokenizer.ggml.eos_token_id"] = tokens.index("<eos>")
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.eog_ids == {tokens.index("<eos>")}
    ids = tokenizer.encode("a</s>a")
    assert 2 in ids
    assert tokenizer.decode(ids) == "a</s>a"


def test_metadata_goes_before_names_that_are_spared() -> None:
    specials = tuple((text, CONTROL) for text in ("<|end|>", "<|return|>", "<|call|>"))
    assert ends_of(specials) == {"<|return|>", "<|call|>"}
    assert ends_of(specials, eot_token_id=262) == {"<|end|>", "<|return|>", "<|call|>"}


def test_older_keys_of_the_parts_of_a_file() -> None:
    specials = (("<p>", CONTROL), ("<m>", CONTROL))
    warned = pytest.warns(UserWarning, match="tokenizer.ggml.prefix_token_id is 999")
    with warned:
        load_tokenizer(bpe_metadata(specials=specials, prefix_token_id=999), "m")


def test_both_ends_are_put_around_a_text() -> None:
    specials = (("<b>", CONTROL), ("<e>", CONTROL), ("<sep>", CONTROL))
    keys = {"bos_token_id": 262, "eos_token_id": 263, "seperator_token_id": 264}
    for bos in (False, True):
        for eos in (False, True):
            metadata = bpe_metadata(
                specials=specials, add_bos_token=bos, add_eos_token=eos, add_sep_token=True, **keys
            )
            tokenizer = load_tokenizer(metadata, "m")
            assert tokenizer.encode("hello") == [262] * bos + [260] + [263] * eos
            assert (tokenizer.sep_id, tokenizer.add_sep) == (264, True)
    with pytest.warns(UserWarning, match="ends with the token"):
        assert tokenizer.encode("hello<e>", parse_special=True) == [262, 260, 263, 263]


def test_no_separator_is_added_where_there_is_none() -> None:
    assert not load_tokenizer(bpe_metadata(pre="roberta-bpe"), "m").add_sep
    with pytest.warns(UserWarning, match="should get a SEP token"):
        assert not load_tokenizer(bpe_metadata(add_sep_token=True), "m").add_sep


def test_eot_by_key_and_by_preference() -> None:
    specials = (("<|endoftext|>", CONTROL), ("<end_of_turn>", CONTROL), ("<t>", CONTROL))
    assert load_tokenizer(bpe_metadata(specials=specials), "m").eot_id == 263
    by_key = load_tokenizer(bpe_metadata(specials=specials, eot_token_id=264), "m")
    assert by_key.eot_id == 264
    assert by_key.eog_ids == {262, 263, 264}


@pytest.mark.parametrize(
    ("texts", "spared"),
    [
        (("<|end|>",), None),
        (("<|end|>", "<|return|>"), None),
        (("<|end|>", "<|return|>", "<|call|>"), "<|end|>"),
        (("<|end|>", "<|calls|>", "<|flush|>"), "<|end|>"),
        (("</s>", "<eos>"), None),
        (("</s>", "<|tool_response>"), "</s>"),
        (("</s>", "<|plamo:eos|>"), "</s>"),
    ],
)
def test_texts_that_end_nothing_beside_others(texts: tuple[str, ...], spared: str | None) -> None:
    metadata = bpe_metadata(specials=tuple((text, CONTROL) for text in texts))
    tokenizer = load_tokenizer(metadata, "m")
    ends = {tokenizer.token_text(token) for token in tokenizer.eog_ids}
    assert ends == set(texts) - {spared, "<|plamo:eos|>"}


def test_suppressed_tokens() -> None:
    assert load_tokenizer(bpe_metadata(suppress_tokens=[3, 5]), "m").suppress_ids == {3, 5}
    with pytest.warns(UserWarning, match="suppress_tokens names 900"):
        assert load_tokenizer(bpe_metadata(suppress_tokens=[3, 900]), "m").suppress_ids == {3}


def test_no_vocabulary() -> None:
    metadata = {
        "tokenizer.ggml.model": "none",
        "general.architecture": "llama",
        "llama.vocab_size": 99,
    }
    tokenizer = load_tokenizer(metadata, "empty.gguf")
    assert tokenizer.n_vocab == 99
    assert tokenizer.decode([5, 6]) == ""
    assert tokenizer.stream().feed(5) == ""
    assert tokenizer.token_bytes(5) == b""
    assert tokenizer.eog_ids == frozenset()
    with pytest.raises(RequestError, match=r"empty\.gguf.*pass token ids"):
        tokenizer.encode("hello")
