"""`riverrun serve`: an HTTP service."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine import SamplerParams
from ..engine.session_options import SessionOptions
from ..server.options import ServerOptions
from ..speculative import Speculation
from .hub import FromHub
from .loading import Loading, load_asked
from .messages import note
from .misuse import misuse
from .parameters import Chosen, command
from .speculation import Drafting

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.model import Model
    from ..engine.pieces import Piece

KEY = "RIVERRUN_API_KEY"
MIB = 1 << 20
# Host memory for earlier texts unless asked for, at most.
MOST_HOST = 8192 * MIB


@command
def serve(
    loading: Loading,
    options: ServerOptions,
    session: Chosen[SessionOptions],
    drafts: Chosen[Speculation],
    sampling: SamplerParams,
    hub: FromHub,
) -> None:
    """Serve models over HTTP, as OpenAI, llama-server, Anthropic and Ollama do, with a page to chat
    at /; requests that do not say get the sampling options given here."""
    _require_packages()
    from ..server.service import Service
    from ..server.serving import listen
    from ..server.serving import serve as serve_forever

    asked = Drafting(drafts, session, loading, hub)
    asked.check()
    for flag, folder in (
        ("--models", options.models),
        ("--slot-save-path", options.slot_save_path),
    ):
        if folder is not None and not folder.is_dir():
            raise misuse(f"{folder} is no folder", flag)
    if os.environ.get(KEY):
        if not os.environ[KEY].strip():
            raise misuse(f"{KEY} holds blanks alone; give it a key, or unset it", KEY)
        options = replace(options, api_keys=(*options.api_keys, os.environ[KEY]))
    listening = listen(options)
    asked = asked.fetched()

    def load(path: Path) -> Engine:
        return _open(replace(asked, loading=replace(asked.loading, model=path)), options)

    service = Service(options, load, _main(asked.loading, options), sampling)
    serve_forever(service, listening)


def _main(loading: Loading, options: ServerOptions) -> Path | None:
    """The model that stays loaded: the one that is named, or the demo where no folder is."""
    import riverrun

    if loading.model is None and options.models is None:
        return riverrun.DEMO_MODEL
    return loading.model


def _open(asked: Drafting, options: ServerOptions) -> Engine:
    """Load a model and make its engine."""
    from ..engine.engine import Engine
    from ..engine.pieces import gathering
    from ..engine.warming import warm_first

    n_ctx = asked.session.values.get("n_ctx")
    model = load_asked(asked.loading, asked.offload(n_ctx))
    try:
        memory = _memory(model, asked, options, n_ctx)
        plans: AbstractContextManager[list[Piece]] = nullcontext([])
        with gathering() if options.warm_up else plans as left:
            engine = Engine(
                model, n_seqs=options.parallel, n_ctx=n_ctx, spec=asked.open(), **memory
            )
        if options.warm_up:
            engine.later = warm_first(engine, left)
    except BaseException:
        model.close()
        raise
    note(engine.session.plan.summary)
    return engine


def _memory(
    model: Model, asked: Drafting, options: ServerOptions, n_ctx: int | None
) -> dict[str, Any]:
    """Fields of SessionOptions for an engine's memory."""
    from ..engine.session_plan import usual_context

    memory = {k: v for k, v in asked.session_options().items() if k != "n_ctx"}
    if options.cache_mib is not None:
        memory["cache_bytes"] = int(options.cache_mib * MIB)
    if options.parallel == 1 and memory.get("n_ctx_total") is None:
        # A conversation that takes turns with another keeps its attention memory, too.
        memory["n_ctx_total"] = 2 * (n_ctx or usual_context(model.n_ctx_train))
    if options.host_mib is not None:
        memory["host_cache_bytes"] = int(options.host_mib * MIB)
    else:
        plan = model.plan_session(n_ctx, options.parallel, **memory)
        states = plan.cache_bytes if plan.bytes.kept else 0
        memory["host_cache_bytes"] = min(plan.bytes.attention + states, MOST_HOST)
    return memory


def _require_packages() -> None:
    """Raise RequestError where what the server stands on is not installed."""
    from importlib.util import find_spec

    from ..graph.errors import RequestError

    missing = [
        name
        for name in ("starlette", "uvicorn", "pydantic", "prometheus_client")
        if find_spec(name) is None
    ]
    if missing:
        raise RequestError(f"the server needs {', '.join(missing)}; pip install 'riverrun[serve]'")
