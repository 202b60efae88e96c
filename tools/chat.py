"""`riverrun chat`: a conversation at the terminal, or one message for each line of a pipe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from ..engine import SamplerParams
from ..engine.session_options import SessionOptions
from ..graph.errors import RiverrunError
from ..speculative import Speculation
from .chat_commands import Leave, obey
from .chat_input import Typed, piped_messages
from .constraints import Constraining
from .conversation import Conversation
from .ending import Ending
from .files import piped
from .generating import drain, outcome, write
from .hub import FromHub
from .loading import Loading
from .messages import complain, note
from .parameters import Chosen, Offer, command
from .speculation import ONE_TEXT, Drafting
from .templating import Templating
from .wording import in_command_words

if TYPE_CHECKING:
    from ..engine import Generation, Result


WHOLE_ANSWERS = Offer(changed={"n": {"absent": -1}})


@command
def chat(
    templating: Templating,
    ending: Annotated[Ending, WHOLE_ANSWERS],
    sampling: SamplerParams,
    session: Annotated[Chosen[SessionOptions], ONE_TEXT],
    loading: Loading,
    hub: FromHub,
    drafts: Chosen[Speculation],
    constraining: Constraining,
) -> None:
    """Talk to a model: answers go to standard output as they come; /help lists what can be typed
    besides messages.

    Where standard input is no terminal, each of its lines is a message, and standard output gets
    the answers alone."""
    template = templating.arguments()
    ready = Drafting(drafts, session, loading, hub).ready(constraining)
    templating.check(ready.model)
    from ..speculative.speculator import Speculator

    drafting = Speculator(ready.session, ready.speculation) if ready.speculation else None
    conversation = Conversation(
        ready.model,
        ready.session,
        template,
        sampling,
        ending,
        drafting,
        ready.constraint,
        templating.messages(),
    )
    try:
        (_answer_lines if piped() else _talk)(conversation)
    finally:
        if drafting is not None:
            drafting.close()


def _answer_lines(conversation: Conversation) -> None:
    for message in piped_messages():
        generation = conversation.ask(message)
        fault = drain(generation, write)
        write("\n")
        conversation.heard(outcome(generation, fault))
        if fault is not None:
            raise fault


def _talk(conversation: Conversation) -> None:
    note(f"{conversation.model.name}: type a message, or /help; Ctrl-D ends")
    for line in Typed():
        try:
            generation = (
                obey(conversation, line) if line.startswith("/") else conversation.ask(line)
            )
            if generation is not None:
                _show(conversation, generation)
        except Leave:
            return
        except RiverrunError as error:
            complain(in_command_words(str(error)))


def _show(conversation: Conversation, generation: Generation) -> None:
    """Print an answer as it comes; Ctrl-C ends it, and what came until then stays."""
    with _stopping(generation):
        fault = drain(generation, write)
    write("\n")
    if fault is not None and not isinstance(fault, KeyboardInterrupt):
        raise fault
    result = outcome(generation, fault)
    conversation.heard(result)
    if result.finish_reason == "length":
        note(_why_short(conversation, result))


def _why_short(conversation: Conversation, result: Result) -> str:
    if len(result.tokens) == conversation.ending.n:
        return f"(ended after {len(result.tokens)} tokens: -n, or /set n)"
    n_ctx = conversation.session.n_ctx
    return f"(the context of {n_ctx} tokens is full: /undo or /clear, or start with a larger -c)"


@contextmanager
def _stopping(generation: Generation) -> Iterator[None]:
    """Ctrl-C in the block ends the answer before its next pass; a second one breaks that off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        generation.request.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
