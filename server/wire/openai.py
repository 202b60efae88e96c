"""Bodies of OpenAI's completions, chats and embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from .anthropic import Thinking
from .body import Body
from .sampling import OPENAI_IGNORED, SAMPLERS_REFUSED, Sampling, Whole

Tokens = list[int]
Prompt = str | Tokens | list[str] | list[Tokens]


class StreamOptions(BaseModel):
    """What a stream has besides text; further fields change nothing."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class _Generating(Sampling):
    """What completions and chats share."""

    model: str | None = None
    max_tokens: Whole | None = None
    n: Whole = Field(1, ge=1, le=64)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    grammar: str | None = Field(None, description="Lark or GBNF that the text follows.")
    json_schema: dict[str, Any] | None = Field(None, description="Schema of the text as JSON.")
    timings_per_token: bool | None = None
    return_drafted: bool | None = Field(
        None, description="Also say which pieces of the text drafters proposed."
    )
    return_tokens: bool | None = Field(None, description="Also give token ids.")


class CompletionBody(_Generating):
    """/v1/completions."""

    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED | {"return_progress"}
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {**SAMPLERS_REFUSED, "prediction": ()}

    prompt: Prompt
    suffix: str | None = Field(None, description="The text behind the hole that is to be filled.")
    echo: bool | None = None
    logprobs: Whole | None = Field(None, ge=0, le=20)
    best_of: Whole | None = Field(None, ge=1, le=64)
    n_predict: Whole | None = None


class ChatBody(_Generating):
    """/v1/chat/completions."""

    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED | {
        *("prediction", "verbosity", "return_progress")
    }
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **SAMPLERS_REFUSED,
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "functions": (),
        "function_call": ("none", "auto"),
        "enforce_strict_json": (),
        "parse_tool_calls": (True,),
    }

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: Whole | None = None
    n_predict: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = Field(None, description="The name of one of the file's templates.")
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning: bool | dict[str, Any] | None = Field(
        None, description="false: reasoning stays in the content, with its tags."
    )
    thinking: Thinking | None = None


class EmbeddingBody(Body):
    """/v1/embeddings."""

    ignored: ClassVar[frozenset[str]] = frozenset({"user"})

    input: Prompt
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = Field(None, ge=1)
