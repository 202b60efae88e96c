"""/api/generate: texts continued, answered or filled in, as Ollama has it."""

from __future__ import annotations

from typing import Any

from ...engine.items import checked_ids
from ...engine.request import Request
from ...graph.errors import TemplateError
from ..answers import Parser, Reader, Verbatim
from ..endpoint import Call, endpoint
from ..failures import bad_request, ollama_error
from ..filling import fill_in
from ..generating import apart, sampling_options, tokens_of
from ..http import Answer, Stream
from ..ollama import Writer, answer_one, check_thinking, load_or_unload, log_of, most_tokens, use
from ..prompting import Chat, prepare, thinking_kwargs
from ..served import Served
from ..wire.ollama import OllamaGenerateBody

Asked = tuple[list[int], dict[str, Any], Parser]


@endpoint(
    "/api/generate",
    OllamaGenerateBody,
    summary="Answer a prompt, as Ollama does.",
    error=ollama_error,
)
async def generate(call: Call[OllamaGenerateBody]) -> Answer | Stream:
    """Answer a prompt; without one, load the model or unload it."""
    body = call.body
    if not body.prompt and not body.suffix:
        return answer_one(body, {**await load_or_unload(call), "response": ""})
    if body.raw and (body.system or body.context):
        raise bad_request("raw: takes neither system nor context", "raw")
    if body.suffix and (body.system or body.context):
        raise bad_request("suffix: takes neither system nor context", "suffix")
    logprobs = log_of(body)
    used = await use(call)
    check_thinking(used.served, body)
    options = sampling_options(call.service, used.served, body.options)
    tokens, options, parser = await apart(_asked, used.served, body, options)
    most = most_tokens(body.options.num_predict)
    run = used.served.submit(tokens, most, logprobs=logprobs, **options)
    ends = [*options.get("stop_token_ids", ()), used.served.model.tokenizer.eos_id]

    def context(request: Request) -> dict[str, Any]:
        """All tokens so far, with the end of the answer where the model has ended it."""
        result = request.result
        ended = result and result.finish_reason == "stop" and request.stop_text is None
        end = [token for token in ends if token is not None][:1] if ended else []
        return {"context": [*request.prompt, *request.tokens, *end]}

    told = None if body.raw or body.suffix else context
    return await Writer(body, used, Reader(parser, run), _response, told).answer()


def _asked(served: Served, body: OllamaGenerateBody, options: dict[str, Any]) -> Asked:
    """Tokens, options of `Engine.submit`, and the reader of the answer."""
    prompt = body.prompt or ""
    if body.raw or body.suffix:
        tokens = fill_in(served, prompt, body.suffix) if body.suffix else tokens_of(served, prompt)
        return tokens, _constrained(served, body, options), Verbatim()
    try:
        return _chat(served, body, options)
    except TemplateError:
        if served.model.source.chat_templates.sources:
            raise
    if body.system:
        raise bad_request(f"system: {served.name} has no chat template", "system")
    tokens = _behind(served, body.context, tokens_of(served, prompt))
    return tokens, _constrained(served, body, options), Verbatim()


def _chat(served: Served, body: OllamaGenerateBody, options: dict[str, Any]) -> Asked:
    """The prompt as a chat."""
    messages = [{"role": "user", "content": body.prompt or ""}]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    schema = body.schema_of_answer
    chat = Chat(
        messages,
        choice="none",
        response_schema=schema,
        template_kwargs=thinking_kwargs(body.thinks, body.effort),
    )
    prepared = prepare(served, chat)
    tokens = _behind(served, body.context, prepared.tokens)
    return tokens, prepared.joined(options), prepared.parser()


def _behind(served: Served, context: list[int] | None, tokens: list[int]) -> list[int]:
    """Tokens behind those of an earlier answer; there is one begin token."""
    if not context:
        return tokens
    before = list(checked_ids(context, served.model.n_vocab))
    begins = tokens[:1] == [served.model.tokenizer.bos_id]
    return [*before, *(tokens[1:] if begins else tokens)]


def _constrained(
    served: Served, body: OllamaGenerateBody, options: dict[str, Any]
) -> dict[str, Any]:
    schema = body.schema_of_answer
    if schema is None:
        return options
    return {**options, "constraint": served.constraint("json_schema", schema)}


def _response(content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"response": content}
    if thinking:
        found["thinking"] = thinking
    return found
