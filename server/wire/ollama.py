"""Bodies of Ollama's endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from .body import Body
from .sampling import SAMPLERS_REFUSED, Sampling, Whole

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


def read_duration(given: Any) -> float:
    """Seconds of a number, or of a text like "5m", "1h30m" or "-1"; -1.0 for any that is negative.
    Raises ValueError."""
    if isinstance(given, str):
        given = _seconds(given.strip())
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
        raise ValueError('expected seconds, or a duration such as "5m"')
    return -1.0 if given < 0 else float(given)


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    size = text.lstrip("+-")
    parts = _PART.findall(size)
    if not parts or "".join(number + unit for number, unit in parts) != size:
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return -total if text.startswith("-") else total


class OllamaOptions(Sampling):
    """`options` of a request."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            *("num_gpu", "main_gpu", "num_thread", "num_batch", "use_mmap", "use_mlock", "numa"),
            *("low_vram", "f16_kv", "num_keep", "logits_all", "vocab_only", "embedding_only"),
        }
    )
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **SAMPLERS_REFUSED,
        "penalize_newline": (True,),
    }

    num_predict: Whole | None = Field(None, description="-1 or -2: as many as fit.")
    num_ctx: Whole | None = Field(None, description="At most the context that is served.")


class OllamaTool(Body):
    """A function that may be called, as a part of a message."""

    id: str | None = None
    type: str | None = None
    function: dict[str, Any]


class OllamaMessage(Body):
    """A message of a chat."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"images": ()}

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaTool] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Timed(Body):
    """What all requests that use a model share."""

    model: str | None = None
    keep_alive: float | None = Field(
        None, description='Seconds or "5m"; negative: for good, 0: not beyond the answer.'
    )
    options: OllamaOptions = Field(default_factory=lambda: OllamaOptions.model_validate({}))

    @field_validator("keep_alive", mode="before")
    @classmethod
    def _duration(cls, given: Any) -> Any:
        return None if given is None else read_duration(given)

    @field_validator("options", mode="before")
    @classmethod
    def _given(cls, given: Any) -> Any:
        return {} if given is None else given


class _Generating(_Timed):
    """What chats and continued texts share."""

    ignored: ClassVar[frozenset[str]] = frozenset({"truncate", "shift"})

    stream: bool | None = Field(None, description="On unless it is false.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description='"json", or the schema of the answer.'
    )
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)

    @property
    def schema_of_answer(self) -> Mapping[str, Any] | None:
        """The schema that `format` asks for, None for any text."""
        if self.format == "json":
            return {"type": "object"}
        return self.format if isinstance(self.format, dict) and self.format else None

    @property
    def thinks(self) -> bool | None:
        """Whether there is to be reasoning, None where that is left open."""
        return True if isinstance(self.think, str) else self.think

    @property
    def effort(self) -> str | None:
        """How much of it."""
        return self.think if isinstance(self.think, str) else None


class OllamaChatBody(_Generating):
    """/api/chat."""

    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateBody(_Generating):
    """/api/generate."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "images": (),
        "template": (),
        "width": (0,),
        "height": (0,),
        "steps": (0,),
    }

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


class OllamaEmbedBody(_Timed):
    """/api/embed."""

    input: str | list[str] | None = None
    truncate: bool | None = Field(None, description="false: texts that are too long are refused.")
    dimensions: Whole | None = Field(None, ge=0)


class OllamaEmbeddingsBody(_Timed):
    """/api/embeddings."""

    prompt: str | None = None


class OllamaShowBody(Body):
    """/api/show."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"system": (), "template": (), "options": ()}

    model: str | None = None
    name: str | None = Field(None, description="An older name of model.")
    verbose: bool | None = None
