"""The regular expressions by which byte-level BPE vocabularies cut texts into pieces.

Oniguruma expressions, in which \\s, \\d, \\p{L}, \\p{N}, \\p{M}, \\p{P}, \\p{S} and \\p{Han} are
Unicode classes. Sources: the pre-tokenizers of the models' tokenizer.json files; OpenAI's encoder
for GPT-2 and tiktoken for its later ones. They are written so that a match takes a number of steps
that grows with its length only: where the source has a look-ahead over the rest of a run, or
starts anew at each character of one, the expression here has the same matches and neither."""

from __future__ import annotations

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
DIGIT = r"\p{N}"
UP_TO_3_DIGITS = r"\p{N}{1,3}"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANK = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def words(
    letters: str = r"\p{L}+",
    numbers: str = DIGIT,
    marks: str = r"[^\s\p{L}\p{N}]+[\r\n]*",
    blank: str = _BLANK,
) -> str:
    """The pattern of cl100k, Llama 3 and Qwen, up to its classes: endings of English words,
    letters after at most one other character, numbers, the rest, white space."""
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{numbers}| ?{marks}|{blank}"


def cased(numbers: str, endings: str = f"{_ENDINGS}?", slash: str = "/", but: str = "") -> str:
    """The pattern of o200k and Tekken: a word changes from upper to lower case at most once.

    endings: what may follow a word; slash: what beside line breaks goes with the marks before it;
    but: what is taken from the classes of letters."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{endings}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{endings}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|{_BLANK}"
    )


QWEN2 = words()
QWEN35 = words(r"[\p{L}\p{M}]+", marks=r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
LLAMA3 = words(numbers=UP_TO_3_DIGITS)
MINICPM5 = words(numbers=r"\p{N}+")
SEED_CODER = words(marks=r"[^\s\p{L}\p{N}\r\n]+")
BAILING = words(blank=r"\s*[\r\n]|\s+(?!\S)|\s+")
EXAONE_MOE = words(
    r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    marks=r"[^\s\p{L}\p{N}]+[\r\n/]?",
    blank=r"\s*[\r\n]|\s+(?!\S)|\s+",
)
# After white space of another kind, no line break is left in the same run.
JAIS2 = words(
    numbers=UP_TO_3_DIGITS,
    blank=r"(?<![^\S\r\n])\s*[\r\n]+|"
    + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s",
)

O200K = cased(UP_TO_3_DIGITS)
TEKKEN = cased(DIGIT, endings="")
KIMI = r"\p{Han}+|" + cased(UP_TO_3_DIGITS, slash="", but=r"&&[^\p{Han}]")
YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
YOUTU = cased(DIGIT)

DEEPSEEK_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANK}"
)
LINE_BREAK = r"[\r\n]"
# Letters of scripts with case.
_CASED_SCRIPTS = (
    "A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LETTERS = rf"\s?[{_CASED_SCRIPTS}]+"
DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
# The source's \s+$, tried once for each run.
DEEPSEEK_END = r"(?<!\s)\s++$"
DEEPSEEK_OTHER = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

DEFAULT_MARKS = r"[\p{P}\$\+<=>\^~\|]+"
FALCON_MARKS = r"[\p{P}\$\+<=>\^~\|`]+"
THREE_ASCII_DIGITS = "[0-9][0-9][0-9]"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

# Blocks of Han, Kana, Lao, Khmer, Myanmar and Hangul.
AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)
LINES = r"[^\n]+|\n+"
