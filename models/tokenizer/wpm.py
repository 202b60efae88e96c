"""WordPiece vocabularies (`tokenizer.ggml.model` = "bert").

Source: Devlin et al. 2018 (BERT); Wu et al. 2016 (WordPiece). In a GGUF file a piece that starts a
word has U+2581 in front, and one that goes on has nothing, where BERT's own files have nothing and
"##"."""

from __future__ import annotations

from tokenizers import Tokenizer as Engine
from tokenizers import models, normalizers, pre_tokenizers

from ...graph.errors import TokenizerError
from .base import Tokenizer
from .special import Defaults, read_specials, strip_sides
from .vocab import SPACE, Metadata, TokenType, Vocab, read_vocab, scalar

_DEFAULTS = Defaults(
    ids=(("bos", 101), ("unknown", 100), ("seperator", 102), ("padding", 0), ("mask", 103)),
    add_bos=True,
    add_sep=True,
    add_space_prefix=True,
    clean_spaces=True,
)
_GOES_ON = "##"
# BERT's own: a longer word is unknown as a whole.
_LONGEST_WORD = 100


class WpmTokenizer(Tokenizer):
    """The longest pieces from left to right, word by word; a word that they do not cover is
    unknown. Words are what white space and punctuation separate, Chinese characters each one, in
    lower case and without accents where the vocabulary has no others. So `decode` gives back the
    words, and not the text."""

    def __init__(self, metadata: Metadata, source: str) -> None:
        vocab = read_vocab(metadata, source, need_types=False, need_scores=False)
        specials = read_specials(metadata, vocab, _DEFAULTS)
        super().__init__(vocab, specials, strip_sides(metadata, vocab))
        if self.unk_id is None:
            raise TokenizerError(
                f"{source}: a WordPiece vocabulary must have an unknown token, and "
                "tokenizer.ggml.unknown_token_id names none; convert the model again"
            )
        lower = _option(metadata, source, "lowercase", True)
        accents = _option(metadata, source, "strip_accents", lower)
        unknown = vocab.tokens[self.unk_id]
        pieces = _pieces(vocab) | {unknown: self.unk_id}
        self._engine = Engine(
            models.WordPiece(pieces, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD)
        )
        self._engine.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=accents, lowercase=lower
        )
        self._engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def _around(self) -> tuple[int | None, int | None]:
        before, _ = super()._around()
        return before, self.sep_id if self.add_sep else None

    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        return self._engine.encode_batch_fast([text])[0].ids

    def _decode_normal(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()


def _option(metadata: Metadata, source: str, name: str, default: bool) -> bool:
    value = scalar(metadata, f"tokenizer.ggml.normalizer.{name}", bool, source)
    return default if value is None else bool(value)


def _pieces(vocab: Vocab) -> dict[str, int]:
    """The pieces as BERT's own files write them. Control tokens are kept out, so that no text
    becomes one."""
    return {
        text[1:] if text.startswith(SPACE) else _GOES_ON + text: token
        for text, token in vocab.ids.items()
        if vocab.types[token] not in (TokenType.CONTROL, TokenType.UNKNOWN)
    }
