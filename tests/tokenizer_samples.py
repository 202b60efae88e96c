"""Small vocabularies for tokenizer tests, as GGUF metadata."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Metadata = dict[str, object]


def byte_letters() -> list[str]:
    """The 256 characters by which byte-level BPE writes bytes, in byte order."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in keep]
    letters = {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def bpe_metadata(
    merges: tuple[str, ...] = ("Ġ a", "l l", "h e", "he ll", "hell o", "Ġ hello"),
    specials: tuple[tuple[str, int], ...] = (),
    pre: str | None = "qwen2",
    **keys: object,
) -> Metadata:
    """A byte-level vocabulary: 256 bytes (ids 0..255), the merges' results, then `specials` as
    (text, type). `keys` are further keys below tokenizer.ggml."""
    tokens = byte_letters() + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [kind for _, kind in specials]
    metadata: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens + [text for text, _ in specials],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(merges),
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def spm_metadata(
    pieces: tuple[str, ...] = ("▁a", "he", "ll", "hell", "hello", "▁hello", "▁▁"),
    specials: tuple[tuple[str, int], ...] = (),
    with_bytes: bool = True,
    **keys: object,
) -> Metadata:
    """<unk> <s> </s>, the 256 bytes (ids 3..258) unless left out, letters, `pieces` with falling
    scores, then `specials` as (text, type). `keys` are further keys below tokenizer.ggml."""
    tokens, types = ["<unk>", "<s>", "</s>"], [UNKNOWN, CONTROL, CONTROL]
    if with_bytes:
        tokens += [f"<0x{b:02X}>" for b in range(256)]
        types += [BYTE] * 256
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz", *pieces]
    scores = [0.0] * len(tokens) + [-float(i) for i in range(len(words))]
    tokens += words
    types += [NORMAL] * len(words)
    metadata: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + [text for text, _ in specials],
        "tokenizer.ggml.token_type": np.array(types + [k for _, k in specials], np.int32),
        "tokenizer.ggml.scores": np.array(scores + [0.0] * len(specials), np.float32),
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def spaced_metadata(
    merges: tuple[str, ...] = ("▁ a", "l l", "h e", "he ll", "hell o", "▁ hello", "▁ ▁"),
    pre: str = "gemma4",
    with_bytes: bool = True,
    **keys: object,
) -> Metadata:
    """The same vocabulary with merges in the place of scores."""
    pieces = tuple(merge.replace(" ", "") for merge in merges)
    metadata = spm_metadata(pieces, with_bytes=with_bytes, **keys)
    del metadata["tokenizer.ggml.scores"]
    return metadata | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
    }


def plain_bpe(text: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """The textbook form of BPE on one piece: merge the pair of lowest rank, leftmost first."""
    letters = byte_letters()
    symbols = [letters[b] for b in text.encode()]
    while True:
        pairs = list(pairwise(symbols))
        best = min((ranks[p] for p in pairs if p in ranks), default=None)
        if best is None:
            return symbols
        at = next(i for i, p in enumerate(pairs) if ranks.get(p) == best)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
