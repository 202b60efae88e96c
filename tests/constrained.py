"""Texts under constraints without a model: random logits, and tokenizers of several kinds."""

from __future__ import annotations

from functools import cache

import numpy as np
from paths import DEMO, shared
from riverrun.engine.constraints import Constraint
from riverrun.models.gguf import open_gguf
from riverrun.models.tokenizer import Tokenizer, load_tokenizer
from tokenizer_samples import CONTROL, USER, bpe_metadata, spm_metadata

CLOSERS = ('"', "}", "]", ")", "0")
ENDS = (("<end>", CONTROL), ("<|im_end|>", CONTROL))
NAMED = (*ENDS, ("<think>", USER), ("</think>", USER), ("<tool>", CONTROL))


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """demo: that of the demo model; bpe, spm: small ones with <end>, <|im_end|> as end tokens and
    the user-defined <think>, </think>; otherwise a shared vocabulary."""
    if name == "bpe":
        return load_tokenizer(bpe_metadata(specials=NAMED, eos_token_id=262), name)
    if name == "spm":
        return load_tokenizer(spm_metadata(specials=NAMED), name)
    path = DEMO if name == "demo" else shared("vocab", f"ggml-vocab-{name}.gguf")
    with open_gguf(path) as file:
        return load_tokenizer(file.metadata, name)


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """The text of tokens that continue another text; strict about UTF-8."""
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens that write exactly this text, one per byte."""
    single = {tokenizer.token_bytes(t): t for t in range(tokenizer.n_vocab - 1, -1, -1)}
    return [single[bytes([byte])] for byte in text.encode()]


def random_logits(tokenizer: Tokenizer, seed: int, step: int, close_from: int) -> np.ndarray:
    """Normal logits; from step close_from on, what closes a text is far likelier than the rest."""
    logits = np.random.default_rng((seed, step)).standard_normal(tokenizer.n_vocab)
    if step >= close_from:
        for text in CLOSERS:
            token = tokenizer.token_id(text)
            if token is not None:
                logits[token] += 20
        logits[sorted(tokenizer.eog_ids)] += 40
    return logits.astype(np.float32)


def generate(
    constraint: Constraint, tokenizer: Tokenizer, seed: int, close_from: int = 24
) -> list[int]:
    """Greedy tokens of random logits under a constraint, up to the end token that stops them."""
    tokens: list[int] = []
    for step in range(400):
        token = int(constraint.mask(random_logits(tokenizer, seed, step, close_from)).argmax())
        assert constraint.allows(token)
        constraint.accept(token)
        if token in tokenizer.eog_ids:
            return tokens
        tokens.append(token)
    raise AssertionError(f"no end after {text_of(tokenizer, tokens[:50])!r}")


def legal(constraint: Constraint, tokenizer: Tokenizer) -> list[int]:
    """The ids that a mask leaves."""
    masked = constraint.mask(np.zeros(tokenizer.n_vocab, np.float32))
    return np.flatnonzero(masked == 0).tolist()
