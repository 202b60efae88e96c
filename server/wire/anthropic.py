"""Bodies of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from .body import Body
from .sampling import Sampling, Whole

Blocks = str | list[dict[str, Any]]


class AnthropicMessage(BaseModel):
    """A turn; what blocks may hold is checked where they are read."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant", "system"]
    content: Blocks


class ToolChoice(BaseModel):
    """Which calls an answer may or must have."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(BaseModel):
    """Whether the model reasons first. budget_tokens: then it stops."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Whole | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None

    @property
    def enabled(self) -> bool:
        """Whether it may reason."""
        return self.type != "disabled"

    @property
    def budget(self) -> int | None:
        """Tokens of reasoning, None for any number."""
        return self.budget_tokens if self.type == "enabled" else None


class OutputConfig(BaseModel):
    """effort: of reasoning; format: a JSON schema of the text."""

    model_config = ConfigDict(extra="ignore")

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(Body):
    """/v1/messages/count_tokens."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            *("metadata", "service_tier", "cache_control", "context_management", "speed"),
            *("inference_geo", "user_profile_id", "workspace_id", "diagnostics"),
        }
    )
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"mcp_servers": (), "container": ()}

    model: str | None = None
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: Blocks | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountBody):
    """/v1/messages."""

    max_tokens: Whole = Field(ge=0)
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    stream: bool | None = None

    def sampling(self) -> Sampling:
        """How tokens are chosen, and what ends a text."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
        }
        return Sampling.model_validate(given)
