"""The vocabulary of a checkpoint as `tokenizer.ggml.*` metadata."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...graph.errors import ModelError
from ..tokenizer import TokenType
from ..tokenizer.vocab import SPACE
from .config import Config
from .json_files import FLAG, ID, TEXT, Each, Form, Leaf, Members, check, optional_json
from .pre_names import pre_name
from .specials import GENERATION, special_keys
from .spm_model import SpmVocabulary, read_spm

# Metadata of a file without a tokenizer.
NO_VOCABULARY = {"tokenizer.ggml.model": "none"}
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_TAB = "<0x09>"
# Texts that are control tokens in models that do not mark them so.
_SPECIAL = re.compile(r"<\|.*\|>|<｜.*｜>|<unused\d*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.DOTALL)


def _is_merge(value: Any) -> bool:
    parts = value.split(" ", 1) if isinstance(value, str) else value
    return (
        isinstance(parts, list) and len(parts) == 2 and all(TEXT.test(p) and p != "" for p in parts)
    )


_SIZES = range(1, 1 << 22)  # of vocabularies, each token of which becomes an entry of the file
# What is read of tokenizer.json, tokenizer_config.json and chat_template.json.
_MERGE = Leaf("two texts, or one with a space between", _is_merge)
_TOKEN = Members({"content": TEXT}, {"special": FLAG})
_STEPS = ("normalizers", "pretokenizers", "processors")
_STEP: Form = Members(
    may={
        **{name: [lambda: _STEP] for name in _STEPS},
        **dict.fromkeys(("type", "prepend_scheme"), TEXT),
        **dict.fromkeys(("use_regex", "individual_digits"), FLAG),
        "pattern": Members(may={"Regex": TEXT, "String": TEXT}),
        "single": [Members(may={"SpecialToken": Members(may={"id": TEXT})})],
    }
)
_TOKENIZER: Form = Members(
    may={
        "added_tokens": [Members({"id": ID, "content": TEXT}, {"special": FLAG})],
        "model": Members(may={"type": TEXT, "byte_fallback": FLAG, "merges": [_MERGE]}),
        **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor"), _STEP),
    }
)
_TEMPLATE: Form = (TEXT, [Members({"name": TEXT, "template": TEXT})])
_SETTINGS: Form = Members(
    may={
        "added_tokens_decoder": Each(_TOKEN, Leaf("a number", lambda key: key.isdecimal())),
        "chat_template": _TEMPLATE,
    }
)
_TEMPLATE_FILE: Form = Members(may={"chat_template": _TEMPLATE})


def vocabulary_keys(folder: Path, config: Config, pre: str = "") -> dict[str, Any]:
    """Metadata for the tokenizer in a checkpoint's folder. pre: the name of the pre-tokenizer, ""
    to find it.

    Raises ModelError where there is none, and for kinds that GGUF files of decoders do not
    have."""
    json_file, model = folder / "tokenizer.json", folder / "tokenizer.model"
    settings = optional_json(folder / "tokenizer_config.json", _SETTINGS)
    described = optional_json(json_file, _TOKENIZER)
    added = _added(described, settings)
    size = config.integer("vocab_size", within=_SIZES)
    if model.is_file():
        keys = _spm_keys(read_spm(model), added, size, settings)
    elif described:
        keys = _described_keys(described, added, size, str(json_file), config.model_type, pre)
    else:
        raise ModelError(
            f"{folder}: has neither tokenizer.json nor tokenizer.model; fetch one of them, or "
            "convert with --no-tokenizer for prompts of token ids"
        )
    generation = optional_json(folder / "generation_config.json", GENERATION)
    template = _template(folder, settings)
    return {**keys, **special_keys(config, described, settings, generation, added), **template}


def _added(described: dict[str, Any], settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Added tokens by id: `content`, `special`, ..."""
    found: dict[int, dict[str, Any]] = {}
    for token in described.get("added_tokens") or ():
        found[token["id"]] = token
    for number, token in (settings.get("added_tokens_decoder") or {}).items():
        found[int(number)] = token
    return found


def _described_keys(
    described: dict[str, Any],
    added: dict[int, dict[str, Any]],
    size: int,
    source: str,
    model_type: str,
    pre: str,
) -> dict[str, Any]:
    """Of a tokenizer.json: byte-level BPE, or BPE over characters with tokens for bytes."""
    model = described.get("model") or {}
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        kind = model.get("type")
        raise ModelError(f"{source}: model.type should be BPE with its vocab, got {kind}")
    check(Path(source), model["vocab"], Each(ID, key=TEXT), "model.vocab")
    if not model["vocab"]:
        raise ModelError(f"{source}: model.vocab should hold tokens, got none; fetch it again")
    vocab, merges = model["vocab"], [_pair(m) for m in model.get("merges") or ()]
    spaced = model.get("byte_fallback") and "<0x00>" in vocab
    if spaced and _TAB not in vocab:
        # Gemma's files have the character in the place of its byte.
        vocab = {_TAB if text == "\t" else text: number for text, number in vocab.items()}
    tokens, types = _tokens(vocab, added, size, source)
    if spaced:
        scores = _scores(tokens, merges)
        return _scored("llama", tokens, scores, types) | {
            "tokenizer.ggml.add_space_prefix": _prepends(described)
        }
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre or pre_name(described, model_type, source),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        # A space within a part is spelled as the byte alphabet does.
        "tokenizer.ggml.merges": [
            " ".join(part.replace(" ", "\u0120") for part in pair) for pair in merges
        ],
    }


def _tokens(
    vocab: dict[str, int], added: dict[int, dict[str, Any]], size: int, source: str
) -> tuple[list[str], list[int]]:
    """Texts and types of `size` tokens; ids that nothing has become unused ones."""
    known = {number: text for text, number in vocab.items()}
    known |= {number: token["content"] for number, token in added.items()}
    last = max(known, default=-1)
    if last >= size:
        raise ModelError(f"{source}: holds token {last}, where vocab_size of config.json is {size}")
    tokens, types = [], []
    for number in range(size):
        text = known.get(number)
        if text is None:
            tokens.append(f"[PAD{number}]")
            types.append(int(TokenType.UNUSED))
            continue
        kind = _type(text, added.get(number))
        tokens.append(_spelled(text, kind))
        types.append(int(kind))
    return tokens, types


def _type(text: str, added: dict[str, Any] | None) -> TokenType:
    if added is not None:
        special = added.get("special") or _SPECIAL.fullmatch(text)
        return TokenType.CONTROL if special else TokenType.USER_DEFINED
    return TokenType.BYTE if _BYTE.fullmatch(text) else TokenType.NORMAL


def _spelled(text: str, kind: TokenType) -> str:
    """A token as files have it: those that a user defined with spaces as they are."""
    return text.replace(SPACE, " ") if kind == TokenType.USER_DEFINED else text


def _pair(merge: Any) -> tuple[str, str]:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
    return left, right


def _scores(tokens: list[str], merges: list[tuple[str, str]]) -> list[float]:
    """The score of a token is minus the rank of the first merge that makes it: of two merges the
    one that BPE does first has the greater score, as in files that were trained with scores."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    return [float(-ranks.get(token, 0)) for token in tokens]


def _prepends(described: dict[str, Any]) -> bool:
    """Whether a text gets a space in front."""
    normalizer = described.get("normalizer") or {}
    parts = normalizer.get("normalizers") or [normalizer]
    if any(part.get("type") == "Prepend" for part in parts):
        return True
    before = described.get("pre_tokenizer") or {}
    scheme = before.get("prepend_scheme", "never") if before.get("type") == "Metaspace" else "never"
    return scheme in ("always", "first")


def _scored(kind: str, tokens: list[str], scores: list[float], types: list[int]) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
    }


def _spm_keys(
    spm: SpmVocabulary, added: dict[int, dict[str, Any]], size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Of a tokenizer.model: its pieces, and what was added to them since."""
    tokens, scores, types = spm.tokens[:size], spm.scores[:size], spm.types[:size]
    for number in range(len(tokens), size):
        tokens.append(f"[PAD{number}]")
        scores.append(-10000.0)
        types.append(int(TokenType.UNUSED))
    for number, token in added.items():
        if number < size:
            text = token["content"]
            kind = _type(text, token)
            tokens[number], scores[number], types[number] = _spelled(text, kind), -1000.0, int(kind)
    prefix = settings.get("add_prefix_space")
    prefix = spm.add_space_prefix if prefix is None else bool(prefix)
    return _scored("llama", tokens, scores, types) | {"tokenizer.ggml.add_space_prefix": prefix}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: is not UTF-8 ({error}); fetch the file again") from None


def _template(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The chat template; of several the one called default, and the others by their names."""
    found = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        found = found or _read_text(folder / "chat_template.jinja")
    if found is None:
        found = optional_json(folder / "chat_template.json", _TEMPLATE_FILE).get("chat_template")
    if not found:
        return {}
    if isinstance(found, str):
        return {"tokenizer.chat_template": found}
    named = {each["name"]: each["template"] for each in found}
    keys: dict[str, Any] = {}
    if "default" in named:
        keys["tokenizer.chat_template"] = named.pop("default")
    if named:
        keys["tokenizer.chat_templates"] = sorted(named)
        keys |= {f"tokenizer.chat_template.{name}": text for name, text in named.items()}
    return keys
