"""GGUF metadata of the vocabulary in a tokenizer.json, as converters write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizer_samples import BYTE, CONTROL, NORMAL, UNKNOWN, USER, Metadata

# What converters take for control tokens although the file does not call them special.
CONTROL_LIKE = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def metadata_of(source: dict[str, Any], config: dict[str, Any], pre: str) -> Metadata:
    """The metadata for a tokenizer.json and its tokenizer_config.json. pre: the name of the
    pre-tokenizer; "llama": a vocabulary of SentencePiece; "gemma4": the same with merges."""
    model = source["model"]
    added = {each["id"]: each for each in source["added_tokens"]}
    size = max([*model["vocab"].values(), *added]) + 1
    tokens, types = [f"[PAD{i}]" for i in range(size)], [5] * size
    spaced = pre in ("llama", "gemma4")
    for text, token in model["vocab"].items():
        tokens[token], types[token] = text, NORMAL
        # The files of Gemma have a tab in the place of its byte.
        if spaced and text == "\t" and "<0x09>" not in model["vocab"]:
            tokens[token] = text = "<0x09>"
        if spaced and len(text) == 6 and text.startswith("<0x"):
            types[token] = BYTE
    for token, each in added.items():
        tokens[token], types[token] = each["content"], _type_of(each, model)
        if spaced and types[token] == USER:
            tokens[token] = tokens[token].replace("▁", " ")
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    metadata: Metadata = {
        "tokenizer.ggml.model": pre if spaced else "gpt2",
        "tokenizer.ggml.pre": "default" if spaced else pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": _scores(tokens, merges),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_space_prefix": _prepends(source),
    }
    for name, role in ROLES.items():
        text = config.get(f"{name}_token")
        text = text["content"] if isinstance(text, dict) else text
        if text in tokens:
            metadata[f"tokenizer.ggml.{role}_token_id"] = tokens.index(text)
    return metadata


def _type_of(each: dict[str, Any], model: dict[str, Any]) -> int:
    text = each["content"]
    if text == model.get("unk_token"):
        return UNKNOWN
    looks = text in CONTROL_LIKE or (text[:2] in ("<|", "<｜") and text[-2:] in ("|>", "｜>"))
    return CONTROL if each["special"] or looks or text.startswith("<unused") else USER


def _scores(tokens: list[str], merges: list[str]) -> np.ndarray:
    """Pieces of SentencePiece are merged in the order of their scores."""
    rank: dict[str, int] = {}
    for merge in merges:
        rank.setdefault(merge.replace(" ", ""), len(rank))
    return np.array([-float(rank.get(token, 1e9)) for token in tokens], np.float32)


def _prepends(source: dict[str, Any]) -> bool:
    return '"Prepend"' in json.dumps(source["normalizer"])
