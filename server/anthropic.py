"""From Anthropic's messages to chats, and from answers to Anthropic's blocks and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from ..engine.request import Request
from ..models.chat.output import CallArguments, CallStart, Content, Delta, Reasoning
from .answers import Gathered
from .failures import bad_request
from .prompting import Chat, read_arguments, read_choice, read_tools, thinking_kwargs
from .wire.anthropic import AnthropicMessage, CountBody, OutputConfig, Thinking

BETWEEN = "\n\n"  # stands between blocks of text that are joined
_EFFORTS = {"xhigh": "high", "max": "high"}  # templates know nothing above high
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: CountBody) -> Chat:
    """What a body asks for. Raises ApiError, naming blocks and tools that are not supported."""
    tools = read_tools([_tool(tool, i) for i, tool in enumerate(body.tools or ())])
    messages = list[dict[str, Any]]()
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    names = dict[str, str]()  # of functions, by the ids of their calls
    for i, message in enumerate(body.messages):
        messages += _messages(message, f"messages[{i}].content", names)
    chosen = body.tool_choice
    choice: Any = None
    if chosen is not None:
        choice = {"name": chosen.name} if chosen.type == "tool" else _CHOICES[chosen.type]
    return Chat(
        messages,
        tools,
        read_choice(choice, tools),
        not (chosen is not None and chosen.disable_parallel_tool_use),
        _schema(body.output_config),
        template_kwargs=_kwargs(body.thinking, body.output_config),
        continues=messages[-1]["role"] == "assistant",
        budget=body.thinking.budget if body.thinking is not None else None,
    )


def _tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise bad_request(
            f"tools[{index}]: {kind!r} is not supported; give tools of type custom, with an "
            "input_schema",
            "tools",
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _schema(config: OutputConfig | None) -> Mapping[str, Any] | None:
    if config is None or config.format is None:
        return None
    schema = config.format.get("schema")
    if config.format.get("type") == "json_schema" and isinstance(schema, Mapping):
        return schema
    raise bad_request("output_config.format: expected a json_schema with its schema")


def _kwargs(thinking: Thinking | None, config: OutputConfig | None) -> dict[str, Any]:
    effort = config.effort if config is not None else None
    thinks = thinking.enabled if thinking is not None else None
    return thinking_kwargs(thinks, _EFFORTS.get(effort, effort) if effort is not None else None)


def _text(content: Any, where: str) -> str:
    """The text of a content that can be nothing else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{where}: expected a text or a list of blocks, got {content!r}")
    texts = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind != "text":
            raise _unsupported(kind, where, "text")
        texts.append(_field(block, "text", where))
    return BETWEEN.join(texts)


def _field(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}: {block['type']} needs {name}, a text, got {value!r}")
    return value


def _unsupported(kind: Any, where: str, known: str) -> Exception:
    return bad_request(f"{where}: blocks of type {kind!r} are not supported here; {known} are")


def _messages(
    message: AnthropicMessage, where: str, names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """A turn as messages of a chat: results of tools are messages of their own."""
    if isinstance(message.content, str) or message.role == "system":
        yield {"role": message.role, "content": _text(message.content, where)}
    elif message.role == "assistant":
        yield _answer(message.content, where, names)
    else:
        yield from _turn(message.content, where, names)


def _turn(
    blocks: Sequence[dict[str, Any]], where: str, names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """What a user says, and results."""
    texts = list[str]()
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(_field(block, "text", where))
        elif kind == "tool_result":
            if texts:
                yield {"role": "user", "content": BETWEEN.join(texts)}
                texts = []
            yield _result(block, where, names)
        else:
            raise _unsupported(kind, where, "text and tool_result")
    if texts or not blocks:
        yield {"role": "user", "content": BETWEEN.join(texts)}


def _result(block: Mapping[str, Any], where: str, names: Mapping[str, str]) -> dict[str, Any]:
    called = _field(block, "tool_use_id", where)
    text = _text(block.get("content") or "", f"{where}.tool_result")
    if block.get("is_error"):
        text = f"Error: {text}"
    found = {"role": "tool", "tool_call_id": called, "content": text}
    return {**found, "name": names[called]} if called in names else found


def _answer(blocks: Sequence[dict[str, Any]], where: str, names: dict[str, str]) -> dict[str, Any]:
    """An earlier answer. What Anthropic has encrypted of reasoning cannot be read."""
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(_field(block, "text", where))
        elif kind == "thinking":
            thoughts.append(_field(block, "thinking", where))
        elif kind == "tool_use":
            name = _field(block, "name", where)
            names[_field(block, "id", where)] = name
            arguments = read_arguments(block.get("input"), f"{where}: input of {name!r}")
            function = {"name": name, "arguments": arguments}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise _unsupported(kind, where, "text, thinking and tool_use")
    found: dict[str, Any] = {"role": "assistant", "content": BETWEEN.join(texts)}
    if any(thoughts):
        found["reasoning_content"] = BETWEEN.join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


class BlockWriter:
    """Tells what is new of an answer in events, and keeps the blocks that they make.

    omits: reasoning is shown as empty blocks."""

    def __init__(self, gathered: Gathered, omits: bool = False) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._gathered, self._omits = gathered, omits
        self._kind = ""  # of the block that is open
        self._texts: list[str] = []  # of it

    def events(self, deltas: Sequence[Delta]) -> Iterator[dict[str, Any]]:
        """The events of what is new; it must be gathered already."""
        for delta in deltas:
            if isinstance(delta, Content):
                yield from self._into("text", {"text": ""})
                self._texts.append(delta.text)
                yield self._delta("text_delta", text=delta.text)
            elif isinstance(delta, Reasoning):
                yield from self._into("thinking", {"thinking": "", "signature": ""})
                if not self._omits:
                    self._texts.append(delta.text)
                    yield self._delta("thinking_delta", thinking=delta.text)
            elif isinstance(delta, CallStart):
                yield from self.close()
                called = self._gathered.calls[delta.index]
                name = called.id.replace("call_", "toolu_", 1)
                yield from self._into("tool_use", {"id": name, "name": called.name, "input": {}})
            elif isinstance(delta, CallArguments):
                self._texts.append(delta.text)
                yield self._delta("input_json_delta", partial_json=delta.text)
            else:
                yield from self.close()

    def close(self) -> Iterator[dict[str, Any]]:
        """End the block that is open. Of arguments that are not whole, what there is counts."""
        if not self._kind:
            return
        text = "".join(self._texts)
        if self._kind == "tool_use":
            self.blocks[-1]["input"] = _partial(text)
        else:
            self.blocks[-1][self._kind] = text
        self._kind, self._texts = "", []
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _into(self, kind: str, empty: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Open a block of a kind, unless one is."""
        if self._kind == kind:
            return
        yield from self.close()
        self._kind = kind
        self.blocks.append({"type": kind, **empty})
        yield {
            "type": "content_block_start",
            "index": len(self.blocks) - 1,
            "content_block": {"type": kind, **empty},
        }

    def _delta(self, kind: str, **what: str) -> dict[str, Any]:
        return {
            "type": "content_block_delta",
            "index": len(self.blocks) - 1,
            "delta": {"type": kind, **what},
        }


def _partial(text: str) -> dict[str, Any]:
    """The object that a text of JSON begins with."""
    try:
        found = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def stop_reason(request: Request, calls: bool) -> str:
    """Anthropic's word for why an answer ended."""
    result = request.result
    if result is not None and result.finish_reason == "length":
        at_most = len(request.tokens) >= request.options.max_tokens
        return "max_tokens" if at_most else "model_context_window_exceeded"
    if request.stop_text is not None:
        return "stop_sequence"
    return "tool_use" if calls else "end_turn"


def usage(request: Request) -> dict[str, int]:
    """The tokens of a request so far; those kept from before are told apart."""
    kept = request.timings.cache_n
    return {
        "input_tokens": len(request.prompt) - kept,
        "cache_read_input_tokens": kept,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(request.tokens),
    }
