"""The name of a pre-tokenizer, as `tokenizer.ggml.pre` has it, from what a tokenizer.json holds.

Sources: the tokenizer.json files that the models' authors publish."""

from __future__ import annotations

from typing import Any

from ...graph.errors import ModelError

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(letters: str, numbers: str, not_word: str = r"[^\s\p{L}\p{N}]") -> str:
    first = r"[^\r\n\p{L}\p{N}]?"
    return rf"{_CONTRACTIONS}|{first}{letters}+|{numbers}| ?{not_word}+[\r\n]*" + _ENDINGS


def _cases(contractions: str, numbers: str) -> str:
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}{upper}*{lower}+{contractions}|{first}{upper}+{lower}*{contractions}"
    return words + rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _ENDINGS


_MARKS = r"""!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"""
_LINE_END = "\r\n"  # as it is, where other patterns have escapes
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"[{_MARKS}][A-Za-z]+|[^{_LINE_END}\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[{_LINE_END}]*|\s*[{_LINE_END}]+|\s+(?!\S)|\s+",
)

# The names of pre-tokenizers by the Unicode normal form that a text is brought to first, "" for
# none, and what it is then split by, in this order.
NAMES: dict[tuple[str, tuple[str, ...]], str] = {
    ("NFC", (_words(r"\p{L}", r"\p{N}"),)): "qwen2",
    ("", (_words(r"\p{L}", r"\p{N}"),)): "hunyuan",
    ("NFC", (_words(r"[\p{L}\p{M}]", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]"),)): "qwen35",
    ("", (_words(r"\p{L}", r"\p{N}{1,3}"),)): "llama-bpe",
    ("", (_cases(_CONTRACTIONS + "?", r"\p{N}{1,3}"),)): "gpt-4o",
    ("", (_cases("", r"\p{N}"),)): "tekken",
    ("", _DEEPSEEK3): "deepseek-v3",
    ("", ("byte level",)): "gpt-2",
    ("NFC", ("byte level",)): "olmo",
    ("", ("digits", "byte level")): "smollm",
    ("NFC", ("digits", "byte level")): "command-r",
}
# Models that are cut as another's name says and differ otherwise.
OTHERS: dict[tuple[str, str], str] = {
    ("llama-bpe", "glm4"): "chatglm-bpe",
    ("llama-bpe", "glm4_moe"): "chatglm-bpe",
    ("smollm", "starcoder2"): "starcoder",
}


def pre_name(tokenizer: dict[str, Any], model_type: str, source: str) -> str:
    """The name for a tokenizer.json. Raises ModelError, quoting what it does to texts, for a
    normalizer or a pre-tokenizer that none of the names stands for."""
    form = ", ".join(_forms(tokenizer.get("normalizer")))
    cuts = tuple(_cuts(tokenizer.get("pre_tokenizer")))
    name = NAMES.get((form, cuts))
    if name is None:
        normalised = f"texts normalised by {form} and " if form else ""
        raise ModelError(
            f"{source}: no name of a pre-tokenizer is known for {normalised}cut by {list(cuts)}; "
            "give it with --pre"
        )
    return OTHERS.get((name, model_type), name)


def _forms(part: Any) -> list[str]:
    """What a text is normalised by, in order: kinds, as tokenizer.json calls them."""
    if not isinstance(part, dict):
        return []
    if part.get("type") == "Sequence":
        return [form for each in part.get("normalizers") or () for form in _forms(each)]
    return [str(part.get("type"))]


def _cuts(part: Any) -> list[str]:
    """What a text is cut by, in order: patterns, or the words of NAMES for what has none."""
    if not isinstance(part, dict):
        return []
    kind = part.get("type")
    if kind == "Sequence":
        return [cut for each in part.get("pretokenizers") or () for cut in _cuts(each)]
    if kind == "Split":
        pattern = part.get("pattern") or {}
        return [str(pattern.get("Regex", pattern.get("String")))]
    if kind == "ByteLevel":
        return ["byte level"] if part.get("use_regex", True) else []
    if kind == "Digits":
        return ["digits" if part.get("individual_digits") else "runs of digits"]
    return [str(kind)]
