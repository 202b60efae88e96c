"""What was compared with what outside: the record that docs/support.md shows. Tests that compare
take their cases from here.

`make support` writes it to oracles.json, where generators of pages read it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from checkpoint_cases import CASES
from pretokenizer_sources import SOURCES
from riverrun.models.convert.family import families
from tiny_models import VARIANTS

RECORD = Path(__file__).with_name("oracles.json")
TRANSFORMERS = "5.17"  # the oldest version that tests run with


class Comparison(NamedTuple):
    """An oracle of logits, and the cases that a test file holds against it, by architecture. what:
    what those are that are made for the test, "" of published models. own: the oracle is code of
    the tests, which shares none with the package."""

    oracle: str
    cases: dict[str, tuple[str, ...]]
    what: str = ""
    own: bool = False


def _checkpoints() -> dict[str, tuple[str, ...]]:
    """The cases of checkpoints by the architecture that their family converts to."""
    found = defaultdict(list)
    for name, (kind, _) in CASES.items():
        found[families()[f"{kind.removesuffix('Text')}ForCausalLM"].arch].append(name)
    return {arch: tuple(names) for arch, names in found.items()}


def _variants(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Variants of tiny models by their architecture, which their names begin with."""
    found = defaultdict(list)
    for name in names:
        found[name.partition(",")[0]].append(name)
    return {arch: tuple(variants) for arch, variants in found.items()}


# "v=2k" and "v=3k": the two sides order value heads differently. "recurrent": other layers attend.
_QWEN35 = ("qwen35", "qwen35,v=2k,tied", "qwen35,v=3k", "qwen35,recurrent")
_QWEN35 += ("qwen35moe", "qwen35moe,fused", "qwen35moe,one")

# By the name of the test file in tests/models.
COMPARISONS = {
    "test_checkpoints": Comparison("transformers", _checkpoints(), "checkpoint"),
    "test_transformers": Comparison("transformers", _variants(_QWEN35), "file"),
    "test_gemma": Comparison("ik_llama.cpp", {"gemma3": ("Gemma 3 270M, Q4_K_M",)}),
    "test_smollm": Comparison("ik_llama.cpp", {"llama": ("SmolLM2 135M Instruct, Q4_1",)}),
    "test_golden": Comparison("stored values", {"qwen35": ("demo in bf16", "demo in q8_0")}),
    "test_architectures": Comparison("numpy in float64", _variants(VARIANTS), "file", own=True),
}


def cases_of(file: str) -> tuple[str, ...]:
    """All cases of a test file, given as its `__file__`, in order."""
    return tuple(name for names in COMPARISONS[Path(file).stem].cases.values() for name in names)


class Vocabulary(NamedTuple):
    """What a converter calls the pre-tokenizer of a published vocabulary ("llama": SentencePiece),
    and the vocabulary's name."""

    pre: str
    title: str


# By the folder of its files, for test_tokenizer_oracle.
VOCABULARIES = {
    "gpt2": Vocabulary("gpt-2", "GPT-2"),
    "text_davinci003": Vocabulary("gpt-2", "text-davinci-003"),
    "gpt35turbo": Vocabulary("dbrx", "GPT-3.5 Turbo"),
    "gpt4o": Vocabulary("gpt-4o", "GPT-4o"),
    "gptoss": Vocabulary("gpt-4o", "gpt-oss"),
    "llama3": Vocabulary("llama-bpe", "Llama 3"),
    "llama3_1": Vocabulary("llama-bpe", "Llama 3.1"),
    "qwen1_5": Vocabulary("qwen2", "Qwen 1.5"),
    "qwen2_5": Vocabulary("qwen2", "Qwen 2.5"),
    "qwen3": Vocabulary("qwen2", "Qwen 3"),
    "deepseek_v3": Vocabulary("deepseek-v3", "DeepSeek V3"),
    "mistral_nemo": Vocabulary("tekken", "Mistral NeMo"),
    "command_r_plus": Vocabulary("command-r", "Command R+"),
    "llama2": Vocabulary("llama", "Llama 2"),
    "gemma": Vocabulary("llama", "Gemma"),
    "gemma2": Vocabulary("llama", "Gemma 2"),
    "gemma3": Vocabulary("llama", "Gemma 3"),
    "yi": Vocabulary("llama", "Yi"),
    "internlm2": Vocabulary("llama", "InternLM 2"),
    "baichuan2": Vocabulary("llama", "Baichuan 2"),
    "chatglm3": Vocabulary("llama", "ChatGLM 3"),
}
# Vocabularies of SentencePiece that are read by their merges, too.
MERGED = ("gemma2", "gemma3", "yi")
# Vectors of llama.cpp: how many texts a file of vocabulary has, and its pre-tokenizer.
VECTORS = {
    "qwen35": (50, "qwen35"),
    "qwen2": (46, "qwen2"),
    "llama-bpe": (46, "llama-bpe"),
    "gpt-2": (46, "gpt-2"),
    "llama-spm": (46, "llama"),
    "phi-3": (46, "llama"),
}


def tokenizers() -> dict[str, Any]:
    """By pre-tokenizer, or "llama" for SentencePiece: the vocabularies whose ids are compared with
    those of the library `tokenizers`, and files of vectors of llama.cpp; cuts: the families whose
    cuts are compared with those of the models' own expressions."""
    ids, vectors = defaultdict(list), defaultdict(list)
    ids["smollm"].append("SmolLM2, of ik_llama.cpp")  # test_smollm
    ids["bert"].append("a small vocabulary, of transformers")  # test_tokenizer_normal_form
    for name, (pre, title) in VOCABULARIES.items():
        ids[pre].append(title)
        if name in MERGED:
            ids["gemma4"].append(title)
    for name, (_, pre) in VECTORS.items():
        vectors[pre].append(name)
    return {"ids": ids, "vectors": vectors, "cuts": list(SOURCES)}


def record() -> str:
    """The record as JSON."""
    compared = {f"tests/models/{name}.py": made._asdict() for name, made in COMPARISONS.items()}
    versions = {"transformers": f" ≥ {TRANSFORMERS}"}
    found = {"versions": versions, "compared": compared, "tokenizers": tokenizers()}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    RECORD.write_text(record())
