"""The pre-tokenizers of BPE vocabularies, by the value of `tokenizer.ggml.pre`: one entry a family.

A text is cut by each pattern in turn (models/tokenizer/patterns.py); what lies between two matches
is a piece of its own. docs/support.md says what each was compared with. Sources of the flags:
the models' tokenizer.json files and the tokenizer classes of `transformers`; of the names and of
the default for BOS and clean-up: the GGUF files that llama.cpp's converter writes."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.errors import TokenizerError
from . import patterns as p


@dataclass(frozen=True)
class Grouping:
    """Digits in groups of three counted from the end of a number, before anything else is cut.

    runs: what is cut from the text, an Oniguruma expression; digits: what in a run is counted, a
    Python expression. Both see a run once, while an expression that looks ahead to the number's
    end sees it at each group."""

    runs: str
    digits: str = r"\d+"


@dataclass(frozen=True)
class PreTokenizer:
    """How texts of a family of vocabularies are cut, and what else goes without saying there.

    cuts: the patterns in a few words. grouping: how digits are grouped first. normalizer: the
    Unicode normal form that a text is brought to first, "" for none; form_in: what says so, the
    models' tokenizer.json ("file") or their class of `transformers` ("class"). spaced: the
    vocabulary is over characters, with U+2581 for the space, and not over bytes. ignore_merges: a
    piece that is a token needs no merges. add_bos, add_sep: what the switches
    `tokenizer.ggml.add_..._token` are where the file has none. clean_spaces: decoding with clean-up
    removes the spaces before punctuation."""

    names: tuple[str, ...]
    cuts: str
    patterns: tuple[str, ...]
    grouping: Grouping | None = None
    normalizer: str = ""
    form_in: str = ""
    spaced: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    add_sep: bool = False
    clean_spaces: bool = False


def _family(names: str, cuts: str, *patterns: str, **flags: object) -> PreTokenizer:
    return PreTokenizer(tuple(names.split()), cuts, patterns, **flags)  # type: ignore[arg-type]


_DIGITS_GPT2 = (p.DIGIT, p.GPT2)
_DEEPSEEK_V3 = (p.UP_TO_3_DIGITS, p.DEEPSEEK_CJK, p.DEEPSEEK3)

FAMILIES = (
    _family(
        "default",
        "punctuation, GPT-2, numbers",
        *(p.DEFAULT_MARKS, p.GPT2, r"\p{N}+", p.THREE_ASCII_DIGITS),
        clean_spaces=True,
    ),
    # OpenAI's GPT-2.
    _family(
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum exaone4 jais",
        "GPT-2",
        p.GPT2,
        clean_spaces=True,
    ),
    _family(
        "jina-v1-en jina-v2-code roberta-bpe", "GPT-2", p.GPT2, add_sep=True, clean_spaces=True
    ),
    _family(
        "mpt olmo modern-bert",
        "GPT-2",
        p.GPT2,
        normalizer="NFC",
        form_in="class",
        clean_spaces=True,
    ),
    _family("trillion granite-docling", "GPT-2", p.GPT2),
    # The same after single digits.
    _family("smollm", "single digits, GPT-2", *_DIGITS_GPT2),
    _family("command-r", "single digits, GPT-2", *_DIGITS_GPT2, normalizer="NFC", form_in="file"),
    _family(
        "starcoder refact codeshell exaone minerva-7b mellum2",
        "single digits, GPT-2",
        *_DIGITS_GPT2,
        clean_spaces=True,
    ),
    _family("falcon", "Falcon", p.FALCON_MARKS, p.GPT2, p.THREE_ASCII_DIGITS, clean_spaces=True),
    _family("chameleon", "Chameleon", *p.CHAMELEON, add_bos=True),
    # BLOOM.
    _family("bloom gpt3-finnish", "BLOOM", p.BLOOM, clean_spaces=True),
    _family("poro-chat", "BLOOM", p.BLOOM),
    _family("viking", "BLOOM, single digits", p.BLOOM, p.DIGIT),
    # OpenAI's cl100k, numbers in groups of three.
    _family(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        "cl100k",
        p.LLAMA3,
        ignore_merges=True,
        add_bos=True,
        clean_spaces=True,
    ),
    _family("dbrx smaug-bpe glm4 chatglm-bpe", "cl100k", p.LLAMA3, clean_spaces=True),
    _family(
        "minicpm5", "cl100k", p.UP_TO_3_DIGITS, p.MINICPM5, ignore_merges=True, clean_spaces=True
    ),
    _family("jais-2", "cl100k, blanks in powers of 2", p.JAIS2, clean_spaces=True),
    _family(
        "superbpe", "digits by threes, words left whole", r"\p{N}+", grouping=Grouping(r"\p{N}++")
    ),
    # The same with single digits: Qwen.
    _family("qwen2 deepseek-r1-qwen f2llmv2", "Qwen 2", p.QWEN2, normalizer="NFC", form_in="file"),
    _family("qwen35", "Qwen 3.5", p.QWEN35, normalizer="NFC", form_in="class"),
    _family("kormo hunyuan solar-open grok-2", "Qwen 2", p.QWEN2),
    _family("megrez stablelm2", "Qwen 2", p.QWEN2, clean_spaces=True),
    _family("bailingmoe bailingmoe2 llada-moe", "Qwen 2, one line break", p.BAILING),
    _family("seed-coder", "Qwen 2, no line break after marks", p.SEED_CODER),
    _family("exaone-moe", "EXAONE MoE", p.EXAONE_MOE, clean_spaces=True),
    # OpenAI's o200k, and Mistral's Tekken.
    _family("gpt-4o llama4 kanana2 talkie minimax-m2", "o200k", p.O200K),
    _family("granite-embed-multi-97m", "o200k", p.O200K, ignore_merges=True),
    _family("tekken", "Tekken", p.TEKKEN, ignore_merges=True, add_bos=True),
    _family("kimi-k2", "o200k, Han apart", p.KIMI),
    _family(
        "youtu", "o200k, East Asian scripts apart", p.YOUTU_SCRIPTS, p.YOUTU, ignore_merges=True
    ),
    _family(
        "tiny_aya cohere2moe",
        "digits by threes, o200k",
        p.O200K,
        grouping=Grouping(r"(?<!\d)\d++\b"),
        normalizer="NFC",
        form_in="class",
    ),
    # DeepSeek.
    _family(
        "deepseek-llm",
        "DeepSeek LLM",
        *(p.LINE_BREAK, p.DEEPSEEK_LETTERS, p.DEEPSEEK_MARKS, p.DEEPSEEK_END, p.DEEPSEEK_OTHER),
        r"\p{N}+",
    ),
    _family(
        "deepseek-coder",
        "DeepSeek Coder",
        *(p.LINE_BREAK, r"\s?\p{L}+", r"\s?\p{P}+", p.DEEPSEEK_OTHER, p.DIGIT),
    ),
    _family("deepseek-v3 hunyuan-dense joyai-llm", "DeepSeek V3", *_DEEPSEEK_V3),
    _family(
        "afmoe",
        "digits by threes, DeepSeek V3",
        p.AFMOE_SCRIPTS,
        p.DEEPSEEK3,
        grouping=Grouping(r"\p{N}++", r".+"),
    ),
    # Vocabularies over characters, like those of SentencePiece.
    _family("gemma4", "characters, lines", p.LINES, spaced=True, add_bos=True, clean_spaces=True),
    _family(
        "granite-embed-multi-311m",
        "characters, lines",
        p.LINES,
        spaced=True,
        add_bos=True,
        clean_spaces=True,
    ),
    _family("sarvam-moe", "characters, lines", p.LINES, spaced=True),
)

PRETOKENIZERS = {name: family for family in FAMILIES for name in family.names}

# Names in use for which there is no implementation, and why.
REFUSED = {"whitespace": "it drops white space, which no model that generates can do without"}


def find_pretokenizer(name: str, source: str) -> PreTokenizer:
    """The pre-tokenizer called `name`. Raises TokenizerError, listing the known ones."""
    found = PRETOKENIZERS.get(name)
    if found is not None:
        return found
    key = f"{source}: tokenizer.ggml.pre"
    if name in REFUSED:
        raise TokenizerError(f"{key}: pre-tokenizer {name!r} is not supported: {REFUSED[name]}")
    raise TokenizerError(
        f"{key}: unknown pre-tokenizer {name!r}; known are {', '.join(sorted(PRETOKENIZERS))}; "
        "convert the model again if one of them fits"
    )
