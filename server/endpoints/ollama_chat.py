"""/api/chat: messages answered, as Ollama has it."""

from __future__ import annotations

from typing import Any

from ..answers import Reader
from ..endpoint import Call, endpoint
from ..failures import ollama_error
from ..generating import apart, sampling_options
from ..http import Answer, Stream
from ..ollama import Writer, answer_one, check_thinking, load_or_unload, log_of, most_tokens, use
from ..prompting import Chat, prepare, read_tools, thinking_kwargs
from ..wire.ollama import OllamaChatBody, OllamaMessage


@endpoint("/api/chat", OllamaChatBody, summary="Answer a chat, as Ollama does.", error=ollama_error)
async def chat(call: Call[OllamaChatBody]) -> Answer | Stream:
    """Answer the last of some messages; without any, load the model or unload it."""
    body = call.body
    if not body.messages:
        found = await load_or_unload(call)
        return answer_one(body, {**found, "message": _message("", "", [])["message"]})
    logprobs = log_of(body)
    used = await use(call)
    check_thinking(used.served, body)
    tools = read_tools(body.tools)
    asked = Chat(
        [chat_message(message) for message in body.messages],
        tools,
        "auto" if tools else "none",
        response_schema=body.schema_of_answer,
        template_kwargs=thinking_kwargs(body.thinks, body.effort),
    )
    prepared = await apart(prepare, used.served, asked)
    run = used.served.submit(
        prepared.tokens,
        most_tokens(body.options.num_predict),
        logprobs=logprobs,
        **prepared.joined(sampling_options(call.service, used.served, body.options)),
    )
    return await Writer(body, used, Reader(prepared.parser(), run), _message).answer()


def chat_message(given: OllamaMessage) -> dict[str, Any]:
    """A message as chat templates have it."""
    found: dict[str, Any] = {"role": given.role, "content": given.content or ""}
    if given.thinking:
        found["reasoning_content"] = given.thinking
    if given.tool_calls:
        found["tool_calls"] = [
            {**call.model_dump(exclude_none=True), "type": "function"} for call in given.tool_calls
        ]
    if given.tool_name is not None:
        found["name"] = given.tool_name
    if given.tool_call_id is not None:
        found["tool_call_id"] = given.tool_call_id
    return found


def _message(content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}
