"""Bodies of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from .sampling import SAMPLERS_REFUSED, Sampling, Whole

LOGPROBS = "message.output_text.logprobs"
# What else `include` may name, all of items and tools that are not here.
INCLUDABLE = (
    *("reasoning.encrypted_content", "message.input_image.image_url", "file_search_call.results"),
    *("web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"),
    "computer_call_output.output.image_url",
)


class TextConfig(BaseModel):
    """format: text, json_object or json_schema."""

    model_config = ConfigDict(extra="ignore")

    format: dict[str, Any] | None = None


class ReasoningConfig(BaseModel):
    """effort: what templates that know of one get; "none": no reasoning."""

    model_config = ConfigDict(extra="ignore")

    effort: str | None = None


class ResponsesBody(Sampling):
    """/v1/responses."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            *("store", "user", "service_tier", "safety_identifier", "prompt_cache_key"),
            *("prompt_cache_retention", "prompt_cache_options", "stream_options", "truncation"),
            *("context_management", "access_programs", "client_metadata"),
        }
    )
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **SAMPLERS_REFUSED,
        "previous_response_id": (),
        "conversation": (),
        "background": (),
        "background_options": (),
        "prompt": (),
        "max_tool_calls": (),
        "moderation": (),
        "image": (),
    }

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Whole | None = Field(None, ge=0)
    metadata: dict[str, Any] | None = Field(None, description="Given back with the answer.")
    include: list[str] | None = Field(
        None, description=f"{LOGPROBS}; what else there is concerns items that answers have not."
    )
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
