"""Chats: messages rendered by a model's chat template, and answered. Methods of Model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.errors import RequestError, TemplateError
from ..models.chat import ChatTemplate
from ..models.tokenizer import Tokenizer, TokenType

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .constraints import Constraint
    from .engine import Speculative
    from .generate import Generation
    from .model import Model
    from .sampler import Sampling
    from .session import Session

_OWN = ("messages", "tools", "documents", "continue_final_message", "control_texts")
# A short conversation, whose rendered text shows what follows an answer.
_ANSWER = "Good answer."
_EXAMPLE = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": _ANSWER},
    {"role": "user", "content": "Thanks"},
)


@dataclass(frozen=True)
class ChatPrompt:
    """Rendered messages: text, token ids, and the tokens that end an answer besides the model's own
    end tokens."""

    text: str
    tokens: list[int]
    stop_token_ids: list[int]


def chat(
    model: Model,
    messages: Sequence[Any],
    max_tokens: int = -1,
    *,
    tools: Sequence[Any] | None = None,
    documents: Sequence[Any] | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool | str = False,
    parse_special: bool = True,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    session: Session | None = None,
    n_ctx: int | None = None,
    cache_prompt: bool | None = None,
    speculative: Speculative = None,
    constraint: Constraint | None = None,
    **sampling: Unpack[Sampling],
) -> Generation:
    """Answer the last of some messages, lazily: iterate for pieces of text, then read `.result`.

    The arguments are those of `chat_prompt` and of `generate`. With a session, what it already
    holds of the chat is kept, unless cache_prompt is False.
    Raises TemplateError without a template and where it fails, and what `generate` raises."""
    prompt = chat_prompt(
        model,
        messages,
        tools=tools,
        documents=documents,
        chat_template=chat_template,
        chat_template_kwargs=chat_template_kwargs,
        continue_final_message=continue_final_message,
        parse_special=parse_special,
    )
    if not ignore_eos:
        stop_token_ids = [*stop_token_ids, *prompt.stop_token_ids]
    return model.generate(
        prompt.tokens,
        max_tokens,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        session=session,
        n_ctx=n_ctx,
        cache_prompt=session is not None if cache_prompt is None else cache_prompt,
        speculative=speculative,
        constraint=constraint,
        **sampling,
    )


def chat_prompt(
    model: Model,
    messages: Sequence[Any],
    *,
    tools: Sequence[Any] | None = None,
    documents: Sequence[Any] | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool | str = False,
    parse_special: bool = True,
    check: Callable[[str], None] | None = None,
) -> ChatPrompt:
    """What a chat template makes of messages.

    messages: dicts with "role" and "content", and what the template knows besides (tool_calls,
    reasoning_content, ...), the whole chat. tools: JSON schemas of functions in OpenAI's form;
    documents: dicts with "title" and "text". chat_template: the text of a template, or the name of
    one of the file's ("tool_use"); by default the file's own. chat_template_kwargs: further
    variables of the template (enable_thinking=False, ...). continue_final_message: end inside the
    last message's content, or the field named, instead of starting an answer. parse_special=False:
    control tokens that messages, tools and documents spell out are text, and those that the
    template writes are tokens. check: is given the text before that is encoded.
    Raises TemplateError without a template and where it fails, RequestError for arguments of other
    types."""
    if chat_template is not None and not isinstance(chat_template, str):
        raise RequestError(f"chat_template: expected a text, got {type(chat_template).__name__}")
    template = model.source.chat_templates.choose(chat_template, tools is not None)
    named = _further(chat_template_kwargs)
    named.setdefault("add_generation_prompt", not continue_final_message)
    tokenizer = model.tokenizer
    rendered = template.rendered(
        messages,
        control_texts=() if parse_special else tokenizer.control_texts,
        tools=tools,
        documents=documents,
        continue_final_message=continue_final_message,
        **named,
    )
    if check is not None:
        check(rendered.plain)
    originals = rendered.stand_ins.originals if rendered.stand_ins else None
    tokens = chat_tokens(tokenizer, rendered.text, originals)
    return ChatPrompt(rendered.plain, tokens, end_of_turn(template, tokenizer))


def chat_tokens(
    tokenizer: Tokenizer, text: str, stand_ins: Mapping[str, str] | None = None
) -> list[int]:
    """Token ids of a rendered chat: control tokens are recognised, and there is one begin token
    where the model wants one, whether the template writes it or not. stand_ins: characters that
    messages have, by those that stand for them."""
    ids = tokenizer.encode(text, False, True, stand_ins)
    bos = tokenizer.bos_id
    return [bos, *ids] if bos is not None and tokenizer.add_bos and ids[:1] != [bos] else ids


def end_of_turn(template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
    """The special token that a template puts behind an answer, if it is one, and not one that ends
    parts of answers as well."""
    try:
        text = template.render(_EXAMPLE)
    except TemplateError:
        return []
    _, found, behind = text.rpartition(_ANSWER)
    ids = tokenizer.encode(behind.lstrip(), add_special=False, parse_special=True)
    if not found or not ids or ids[0] in tokenizer.inner_ids:
        return []
    special = (TokenType.CONTROL, TokenType.USER_DEFINED)
    return ids[:1] if tokenizer.token_type(ids[0]) in special else []


def _further(given: Any) -> dict[str, Any]:
    """The further variables of a template, checked."""
    if given is not None and not isinstance(given, Mapping):
        raise RequestError(f"chat_template_kwargs: expected a dict, got {type(given).__name__}")
    named = dict(given or {})
    for name in named:
        if not isinstance(name, str) or name in _OWN:
            raise RequestError(
                "chat_template_kwargs: expected names of a template's variables other than "
                f"{', '.join(_OWN)}, got {name!r}"
            )
    return named
