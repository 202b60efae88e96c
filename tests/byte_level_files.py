"""tokenizer.json files of byte-level BPE, trained on a few words."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NFC = normalizers.NFC()
WORDS = ["the", "other", "rather", "gathers", "weather", "whether", "together", "leather"]
WORDS += ["feather", "bother", "12", "345"]
TEXTS = ["the weather, whether", "  other  leathers\n\n 12345!", "гather ü 🙂 the", ""]


def corpus() -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=12)) for _ in range(60)]


def cut(pattern: str) -> pre_tokenizers.PreTokenizer:
    """As Qwen's files cut, with this pattern."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, level])


def byte_level(
    folder: Path,
    pattern: str = QWEN2,
    normalizer: normalizers.Normalizer | None = NFC,
) -> Engine:
    """A tokenizer.json of byte-level BPE with tokens added behind the trained ones."""
    made = Engine(models.BPE())
    made.pre_tokenizer = cut(pattern)
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False),
    )
    made.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    made.add_tokens([AddedToken("<tool>", normalized=False), "<|odd|>"])
    made.save(str(folder / "tokenizer.json"))
    return made
