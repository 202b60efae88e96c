"""How the models' own files and libraries cut texts, independently of the table of pre-tokenizers.

Where the table has an expression that takes fewer steps, here is the one that it stands for."""

from __future__ import annotations

from riverrun.models.tokenizer.pretokenizers import FAMILIES
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split
from tokenizers.pre_tokenizers import PreTokenizer as Step

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANK = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LETTERS = r"[^\r\n\p{L}\p{N}]?"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
O200K = (
    rf"{LETTERS}{UPPER}*{LOWER}+{ENDINGS}?|{LETTERS}{UPPER}+{LOWER}*{ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANK}"
)


def isolated(pattern: str) -> Step:
    return Split(Regex(pattern), "isolated")


GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
# By the first name of a family.
SOURCES: dict[str, list[Step]] = {
    "gpt-2": [GPT2],
    "smollm": [Digits(individual_digits=True), GPT2],
    "command-r": [Digits(individual_digits=True), GPT2],
    "bloom": [isolated(" ?[^(\\s|.,!?…。，、।۔،)]+")],
    "falcon": [isolated(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, isolated("[0-9][0-9][0-9]")],
    "llama-bpe": [
        isolated(rf"{ENDINGS}|{LETTERS}\p{{L}}+|\p{{N}}{{1,3}}|{MARKS}|{BLANK}"),
    ],
    "dbrx": [
        Split(
            Regex(rf"{ENDINGS}|{LETTERS}\p{{L}}+|\p{{N}}{{1,3}}|{MARKS}|{BLANK}"),
            "removed",
            invert=True,
        )
    ],
    "qwen2": [isolated(rf"{ENDINGS}|{LETTERS}\p{{L}}+|\p{{N}}|{MARKS}|{BLANK}")],
    "qwen35": [
        isolated(
            rf"{ENDINGS}|{LETTERS}[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANK}"
        )
    ],
    "bailingmoe": [
        isolated(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        )
    ],
    "jais-2": [
        isolated(
            rf"{ENDINGS}|{LETTERS}\p{{L}}+|\p{{N}}{{1,3}}|{MARKS}|\s*[\r\n]+|"
            + "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
            + r"|\s{1,2}(?!\S)|\s{1}"
        )
    ],
    "superbpe": [
        isolated(r"\p{N}+"),
        isolated(r"(?=(\d{3})+(?!\d))"),
    ],
    "gpt-4o": [isolated(O200K)],
    "tiny_aya": [isolated(r"\d{1,3}(?=(?:\d{3})*\b)"), isolated(O200K)],
    "tekken": [isolated(O200K.replace(f"{ENDINGS}?", "").replace(r"\p{N}{1,3}", r"\p{N}"))],
    "kimi-k2": [
        isolated(
            r"[\p{Han}]+|"
            + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
        )
    ],
    "deepseek-v3": [
        isolated(r"\p{N}{1,3}"),
        isolated("[一-龥\u3040-ゟ゠-ヿ]+"),
        isolated(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + BLANK
        ),
    ],
    "deepseek-llm": [
        *map(isolated, next(f for f in FAMILIES if "deepseek-llm" in f.names).patterns[:3]),
        *map(isolated, (r"\s+$", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}+")),
    ],
}
