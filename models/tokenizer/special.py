"""Special ids of a vocabulary: where a text starts, which tokens end a generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ...graph.errors import TokenizerError
from .vocab import Metadata, TokenType, Vocab, integers, scalar, warn

# GGUF key names, "seperator" included.
_KEYS = (
    *("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
)
# Keys of older files.
_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}

# Names by which control tokens are given a role whose key is missing, in order of preference.
_NAMES: dict[str, tuple[str, ...]] = {
    "eot": (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]"),
        *("<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

_ENDING_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

_ENDING_NAMES = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"),
    *("<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>"),
    *("[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>"),
    *("<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)

# A name does not end a generation in a vocabulary that has all names of one of these groups.
_NOT_ENDING: dict[str, tuple[tuple[str, ...], ...]] = {
    "<|end|>": (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>")),
    "</s>": (("<|tool_response>",), ("<|plamo:eos|>",)),
}


# Where "<mask>" swallows the space before it.
_MASK_PRES = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_MASK_ARCHS = ("nomic-bert-moe", "jina-bert-v3")


@dataclass(frozen=True)
class Defaults:
    """What a kind of tokenizer assumes where the file says nothing: ids by role, and switches."""

    ids: tuple[tuple[str, int], ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False


@dataclass(frozen=True)
class Specials:
    """Special ids by GGUF role name ("bos", "eos", "eot", "padding", ...), absent where unknown,
    and the switches that go with them. inner_ids: control tokens that end a part of an answer
    after which it goes on."""

    ids: dict[str, int]
    eog_ids: frozenset[int]
    suppress_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_sep: bool
    add_space_prefix: bool
    clean_spaces: bool
    inner_ids: frozenset[int] = frozenset()


NO_SPECIALS = Specials({}, frozenset(), frozenset(), False, False, False, False, False)


def read_specials(metadata: Metadata, vocab: Vocab, defaults: Defaults) -> Specials:
    """Resolve special ids and switches.

    A role is given by its key, or else by the name of a control token. What ends a generation is
    the ids of such roles, and the control tokens whose names say it: a token of another type is
    text, whatever it spells. An id outside the vocabulary is left out with a warning, and so is
    adding a token that has no id. Raises TokenizerError for a value of a wrong type."""
    named = _ids_from_keys(metadata, vocab, dict(defaults.ids))
    control = {
        text: token for text, token in vocab.ids.items() if vocab.types[token] == TokenType.CONTROL
    }
    inner = set[int]()
    for text, groups in _NOT_ENDING.items():
        if text in control and any(all(t in vocab.ids for t in group) for group in groups):
            inner.add(control.pop(text))
    ids = {
        role: next(control[text] for text in texts if text in control)
        for role, texts in _NAMES.items()
        if not control.keys().isdisjoint(texts)
    } | named
    ends = {ids[role] for role in _ENDING_ROLES if role in ids}
    ends |= {control[text] for text in _ENDING_NAMES if text in control}
    return Specials(
        ids=ids,
        eog_ids=frozenset(ends),
        suppress_ids=_suppress_ids(metadata, vocab),
        add_bos=_adds("bos", "bos", metadata, vocab, ids, defaults.add_bos),
        add_eos=_adds("eos", "eos", metadata, vocab, ids, defaults.add_eos),
        add_sep=_adds(
            "sep", "seperator", metadata, vocab, ids, defaults.add_sep and "seperator" in ids
        ),
        add_space_prefix=_switch(metadata, vocab, "add_space_prefix", defaults.add_space_prefix),
        clean_spaces=defaults.clean_spaces,
        inner_ids=frozenset(inner - ends),
    )


def _ids_from_keys(metadata: Metadata, vocab: Vocab, defaults: dict[str, int]) -> dict[str, int]:
    ids = {}
    for role in _KEYS:
        key = f"tokenizer.ggml.{role}_token_id"
        if metadata.get(key) is None and role in _OLD_KEYS:
            key = f"tokenizer.ggml.{_OLD_KEYS[role]}_token_id"
        value = cast("int | None", scalar(metadata, key, int, vocab.source))
        value = defaults.get(role) if value is None else value
        if value is None:
            continue
        if 0 <= value < len(vocab.tokens):
            ids[role] = value
        else:
            warn(
                vocab.source,
                f"{key} is {value}, outside the vocabulary of {len(vocab.tokens)} tokens; "
                "this special token is off",
            )
    return ids


def _switch(metadata: Metadata, vocab: Vocab, name: str, default: bool) -> bool:
    value = scalar(metadata, f"tokenizer.ggml.{name}", bool, vocab.source)
    return default if value is None else bool(value)


def _adds(
    name: str, role: str, metadata: Metadata, vocab: Vocab, ids: dict[str, int], default: bool
) -> bool:
    adds = _switch(metadata, vocab, f"add_{name}_token", default)
    if adds and role not in ids:
        warn(
            vocab.source,
            f"texts should get a {name.upper()} token, but tokenizer.ggml.{role}_token_id "
            "names none; none is added",
        )
        return False
    return adds


def _suppress_ids(metadata: Metadata, vocab: Vocab) -> frozenset[int]:
    key = "tokenizer.ggml.suppress_tokens"
    if metadata.get(key) is None:
        return frozenset()
    listed = set(integers(metadata, key, vocab.source))
    valid = {token for token in listed if 0 <= token < len(vocab.tokens)}
    if valid != listed:
        warn(
            vocab.source,
            f"{key} names {min(listed - valid)}, outside the vocabulary of "
            f"{len(vocab.tokens)} tokens; such ids are ignored",
        )
    return frozenset(valid)


def strip_sides(metadata: Metadata, vocab: Vocab) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of the special tokens that swallow the white space before them, and after them.

    GGUF has no field for this, so that it follows from the names of model and pre-tokenizer."""
    name, pre, arch = (
        metadata.get(key, "")
        for key in ("general.name", "tokenizer.ggml.pre", "general.architecture")
    )
    for key, value in (("general.name", name), ("general.architecture", arch)):
        if not isinstance(value, str):
            raise TokenizerError(f"{vocab.source}: {key} must be a str, got {value!r}")
    name = str(name).lower()
    if pre in _MASK_PRES or arch in _MASK_ARCHS:
        return _known(vocab, "<mask>"), frozenset()
    if "phi-3" in name or "phi3" in name:
        special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        all_special = {i for i, kind in enumerate(vocab.types) if kind in special}
        return frozenset(), frozenset(
            (all_special | _known(vocab, "</s>")) - _known(vocab, "<unk>", "<s>", "<|endoftext|>")
        )
    if pre == "modern-bert" or "modern-bert" in name:
        return _known(vocab, "[MASK]"), frozenset()
    return frozenset(), frozenset()


def _known(vocab: Vocab, *texts: str) -> frozenset[int]:
    return frozenset(vocab.ids[text] for text in texts if text in vocab.ids)
