"""The chat templates that a model file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...graph.errors import TemplateError
from ..tokenizer import Tokenizer
from .template import ChatTemplate

KEY = "tokenizer.chat_template"
DEFAULT, FOR_TOOLS = "default", "tool_use"


@dataclass(frozen=True)
class ChatTemplates:
    """Chat templates by name: the unnamed one is "default".

    path: the file; specials: texts of its special tokens by the names that templates know."""

    path: str
    sources: Mapping[str, str]
    specials: Mapping[str, str]

    @classmethod
    def read(cls, path: str, metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplates:
        """Those of a file's metadata: the keys tokenizer.chat_template and, for further ones,
        tokenizer.chat_template.NAME. Raises TemplateError for one that is no text."""
        sources = {}
        for key in metadata:
            name = key.removeprefix(KEY).removeprefix(".") or DEFAULT
            if key == KEY or key.startswith(f"{KEY}."):
                source = metadata[key]
                if not isinstance(source, str):
                    raise TemplateError(
                        f"{path}: {key}: expected a text, got {type(source).__name__}; convert the "
                        "model again"
                    )
                sources[name] = source
        return cls(path, sources, special_texts(tokenizer))

    def choose(self, wanted: str | None = None, with_tools: bool = False) -> ChatTemplate:
        """A template. wanted: the name of one, or the text of another; None for the one that is for
        tools where there are any, else the default.

        Raises TemplateError where the file has no such template."""
        if wanted is not None and "{" in wanted:
            return ChatTemplate(wanted, "chat_template", self.specials)
        name = wanted or (FOR_TOOLS if with_tools and FOR_TOOLS in self.sources else DEFAULT)
        if name not in self.sources:
            raise TemplateError(self._missing(name))
        label = KEY if name == DEFAULT else f"{KEY}.{name}"
        return ChatTemplate(self.sources[name], f"{self.path}: {label}", self.specials)

    def _missing(self, name: str) -> str:
        if not self.sources:
            return (
                f"{self.path}: the model file has no chat template ({KEY}), so it may not be a "
                "chat model; give the text of one (chat_template=...)"
            )
        return (
            f"{self.path}: there is no chat template {name!r}; the file has "
            f"{', '.join(sorted(self.sources))}; or give the text of one (chat_template=...)"
        )


def special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    """The texts of a vocabulary's special tokens by the names that templates know."""
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": tokenizer.unk_id,
        "pad_token": tokenizer.pad_id,
    }
    return {name: tokenizer.token_text(i) for name, i in ids.items() if i is not None}
