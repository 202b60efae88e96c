"""The pre-tokenizers of byte-level BPE, by the value of `tokenizer.ggml.pre`: one line each.

A text is cut by each pattern in turn; what lies between two matches is a piece of its own.
Patterns are Oniguruma expressions, in which \\s, \\p{L}, \\p{N}, \\p{M} and \\p{P} are Unicode
classes. Sources: the pre-tokenizers of the models' own tokenizer.json files; OpenAI's GPT-2
encoder for `gpt-2`."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.errors import TokenizerError


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut, and what a vocabulary of this kind takes for granted.

    ignore_merges: a piece that is a token needs no merges.
    add_bos: texts start with the BOS token unless `tokenizer.ggml.add_bos_token` says otherwise.
    clean_spaces: decoding with clean-up removes the spaces before punctuation."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    clean_spaces: bool = True


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _words(letters: str, numbers: str, not_word: str) -> str:
    """The pattern that the Qwen and Llama 3 families share up to their character classes."""
    return (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}| ?{not_word}+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_QWEN2 = _words(r"\p{L}", r"\p{N}", r"[^\s\p{L}\p{N}]")
_QWEN35 = _words(r"[\p{L}\p{M}]", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]")
_LLAMA3 = _words(r"\p{L}", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

_qwen2 = PreTokenizer((_QWEN2,), clean_spaces=False)
_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_gpt2 = PreTokenizer((_GPT2,))

PRETOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(_DEFAULT),
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "jina-es": _gpt2,
    "jina-de": _gpt2,
    "jina-v2-es": _gpt2,
    "jina-v2-de": _gpt2,
    "gigachat": _gpt2,
    "a.x-4.0": _gpt2,
    "mellum": _gpt2,
    "exaone4": _gpt2,
    "modern-bert": _gpt2,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "llama-bpe": _llama3,
    "falcon3": _llama3,
    "falcon-h1": _llama3,
    "pixtral": _llama3,
    "midm-2.0": _llama3,
    "lfm2": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "kormo": _qwen2,
    "f2llmv2": _qwen2,
    "megrez": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), clean_spaces=False),
}


def find_pretokenizer(name: str, source: str) -> PreTokenizer:
    """The pre-tokenizer called `name`. Raises TokenizerError, listing the known ones."""
    found = PRETOKENIZERS.get(name)
    if found is None:
        raise TokenizerError(
            f"{source}: tokenizer.ggml.pre: unknown pre-tokenizer {name!r}; known are "
            f"{', '.join(sorted(PRETOKENIZERS))}; convert the model again if one of them fits"
        )
    return found
