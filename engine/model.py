"""A loaded model: file, tokenizer, backend, weights; it makes sessions and generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ..backends import Plan
from ..backends.debug import watched
from ..graph import Graph
from ..graph.errors import RequestError
from ..models import ModelFile
from ..models.step import Capacity, StepShape
from ..models.tokenizer import Tokenizer
from . import chat as chats
from .batch import run_batch, spread
from .constraints import Constraint, compile_constraint
from .constraints.kinds import Source
from .drafting import Drafting, Opener
from .embedding import EmbeddingOptions, default_pooling, embed
from .engine import Engine, Speculative
from .generate import Generation
from .offload import Offload, open_for
from .plan_cache import PlanCache
from .result import Result
from .sampler import Sampling
from .session import Session
from .session_options import SessionOptions
from .session_plan import SessionPlan, plan_session

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Model:
    """A model on a device. May serve many sessions and threads; plans are shared by all."""

    def __init__(
        self,
        source: ModelFile,
        device: str = "auto",
        threads: int | None = None,
        offload: Offload | None = None,
        drafters: Callable[[str], Opener] | None = None,
    ) -> None:
        """drafters: makes what `speculative=` asks for by name."""
        self.source, self._drafters = source, drafters
        self.backend = watched(open_for(source, device, threads, offload or Offload()))
        self.weights: Any = self.backend.load_weights(source.weights)
        self.plans = PlanCache()

    def __repr__(self) -> str:
        arch = self.source.arch.name
        where = self.device if "backend" in self.__dict__ else "no device, closed"
        return f"<Model {self.name}, {arch}, {self.source.nbytes / 2**20:.0f} MiB on {where}>"

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free its weights and plans, once its sessions are gone; later uses raise RequestError."""
        self.plans.clear()
        for name in ("weights", "backend"):
            self.__dict__.pop(name, None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in ("weights", "backend"):
                raise RequestError("this model is closed; load it again")
            raise AttributeError(f"a model has no attribute {name!r}")

    @property
    def name(self) -> str:
        """The file's name."""
        return self.source.path.name

    @property
    def device(self) -> str:
        """The device's name."""
        return self.backend.name

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer."""
        return self.source.tokenizer

    @property
    def n_vocab(self) -> int:
        """Rows of the embedding and columns of the logits."""
        return self.source.arch.hp.n_vocab

    @property
    def n_ctx_train(self) -> int:
        """The context that the model was trained for, in tokens."""
        return self.source.arch.hp.n_ctx_train

    @property
    def fingerprint(self) -> str:
        """Tells this model from others."""
        return self.source.fingerprint

    def plan(self, shape: StepShape, capacity: Capacity, kind: str, program: str = "trunk") -> Plan:
        """The compiled step of a program for these sizes; compiled once. program: "trunk", "mtp"
        (the block that predicts further tokens), "folds" (recurrent ops alone) or "ahead" (a
        step whose token is the one that the pass before picked, and which picks the next)."""
        return self.plans.get(
            (shape, capacity, kind, program),
            lambda: self.backend.compile(self._build(shape, capacity, program), kind),
        )

    def _build(self, shape: StepShape, capacity: Capacity, program: str) -> Graph:
        n_vocab = self.tokenizer.n_vocab or self.n_vocab
        build = self.source.arch.programs()[program].graph
        return build(shape, capacity, self.source.specs, n_vocab)

    def plan_session(
        self, n_ctx: int | None = None, n_seqs: int = 1, **options: Any
    ) -> SessionPlan:
        """What a session with these SessionOptions will hold, before it is made.

        Where passes can run ahead of the host, n_rs_seq is 1 unless given, so that they do."""
        options.setdefault("n_rs_seq", int(self.backend.runs_ahead))
        return plan_session(self, SessionOptions(n_ctx, n_seqs, **options))

    def session(self, n_ctx: int | None = None, n_seqs: int = 1, **options: Any) -> Session:
        """A new session. options: the fields of SessionOptions (cache_type_k, cache_type_v,
        rollback, n_rs_seq, ...)."""
        return Session(self, self.plan_session(n_ctx, n_seqs, **options))

    def constraint(self, kind: str, source: Source = None) -> Constraint:
        """What a generation's text must conform to: `compile_constraint` on this model's tokens.

        kind: "json_schema", "json_object", "regex" or "grammar". Needs the extra `grammar`."""
        return compile_constraint(self.tokenizer, kind, source)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt, with the begin token where the model wants one; special tokens
        in the text are recognised."""
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def opener(self, asked: Speculative) -> Opener | Drafting | None:
        """What `speculative=` asks for: names of drafters ("mtp", "ngram-mod,mtp"), or a
        Speculation or Speculator of riverrun.speculative. Raises RequestError for others."""
        if asked is None or isinstance(asked, (Opener, Drafting)):
            return asked
        if not isinstance(asked, str):
            raise RequestError(
                f"speculative should be drafters' names or a Speculation, got {asked!r}"
            )
        if self._drafters is None:
            raise RequestError(
                f"drafters by name ({asked!r}) need a model from riverrun.load; give a Speculation"
            )
        return self._drafters(asked)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = -1,
        *,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        session: Session | None = None,
        n_ctx: int | None = None,
        cache_prompt: bool = False,
        speculative: Speculative = None,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        **sampling: Unpack[Sampling],
    ) -> Generation:
        """Continue a prompt (text or token ids), lazily: iterate for pieces of text, then read
        `.result`.

        max_tokens: -1 runs to the end token or the context's end. stop: texts that end it;
        stop_token_ids: tokens that do. session: a session to continue in, which then holds prompt
        and generated tokens; else a fresh one of n_ctx tokens. cache_prompt: the prompt is the
        whole text, and the session keeps the part that it already holds. speculative: drafters by
        name ("mtp", "ngram-mod,mtp"), or a Speculation or Speculator of riverrun.speculative.
        constraint: what the text must conform to (engine/constraints). logprobs: report the
        log-probability of each token and of so many of the likeliest (engine/logprobs.py).
        sampling: the fields of SamplerParams (temperature, top_k, top_p, min_p, seed, ...).
        Raises RequestError for values out of range and prompts that do not fit, SessionBusy for a
        session that is in use."""
        asked = self.opener(speculative)
        engine = Engine(
            self, n_ctx=n_ctx, spec=asked, session=self._session_for(session, n_ctx, asked)
        )
        try:
            request = engine.submit(
                prompt,
                max_tokens,
                stop=stop,
                stop_token_ids=stop_token_ids,
                ignore_eos=ignore_eos,
                cache_prompt=cache_prompt,
                constraint=constraint,
                logprobs=logprobs,
                **sampling,
            )
        except BaseException:
            engine.close()
            raise
        return Generation(engine, request)

    @overload
    def generate_batch(
        self, prompts: Sequence[Any], *, as_completed: Literal[False] = False, **options: Any
    ) -> list[Result]: ...
    @overload
    def generate_batch(
        self, prompts: Sequence[Any], *, as_completed: Literal[True], **options: Any
    ) -> Iterator[tuple[int, Result]]: ...

    def generate_batch(
        self,
        prompts: Sequence[Any],
        *,
        as_completed: bool = False,
        n_seqs: int | None = None,
        n_ctx: int | None = None,
        **options: Any,
    ) -> list[Result] | Iterator[tuple[int, Result]]:
        """Continue several prompts (texts or lists of ids) at once; their results in the prompts'
        order or, as_completed, (index, result) as they end.

        n_seqs: how many run at a time, by default all, up to 16; n_ctx: tokens of the longest, by
        default what the longest prompt and its max_tokens need. options: those of `generate`; a
        list gives each prompt its own. A prompt that fails has finish_reason "error"; the others
        go on. Raises RequestError for options out of range."""
        each = spread(prompts, options)
        if not each:
            return iter(()) if as_completed else []
        found = run_batch(self, prompts, each, n_seqs, n_ctx)
        if as_completed:
            return found
        results = dict(found)
        return [results[i] for i in range(len(prompts))]

    chat, chat_prompt = chats.chat, chats.chat_prompt

    def embed(
        self,
        texts: str | Sequence[Any],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        **memory: Any,
    ) -> np.ndarray | list[np.ndarray]:
        """Embeddings of texts (strings, or lists of token ids), f32 [n, n_embd]: the rows of their
        tokens after the final norm, pooled; with pooling "none" a list of f32 [n_tokens, n_embd].

        pooling: "mean", "last", "cls" (the first token's) or "none"; by default what the file's
        metadata says, else "mean". normalize: to Euclidean length 1. memory: further fields of
        SessionOptions (cache_type_k, ...). A text's embedding does not depend on the others. Raises
        RequestError for a text without tokens, and options out of range."""
        options = EmbeddingOptions(pooling, normalize)
        listed = [texts] if isinstance(texts, str) else texts
        found = embed(self, listed, options, **memory)
        if (pooling or default_pooling(self)) == "none":
            return found
        return np.array(found, np.float32).reshape(len(found), self.source.arch.hp.n_embd)

    def _session_for(
        self, session: Session | None, n_ctx: int | None, asked: Opener | Drafting | None
    ) -> Session | None:
        """The session that a generation is to use, None for one of its own."""
        drafting: Any = None if isinstance(asked, Opener) else asked
        if drafting is not None:
            if session is not None and session is not drafting.session:
                raise RequestError("this Speculator belongs to another session; make one for this")
            session = drafting.session
        if session is None:
            return None
        if not isinstance(session, Session):
            raise RequestError(f"session should be one of model.session(), got {session!r}")
        if session.model is not self:
            raise RequestError(
                f"the session is one of another model ({session.model.name}, this is {self.name}); "
                "make one with this model's `session`"
            )
        if n_ctx is not None:
            raise RequestError("n_ctx is for a session of its own; the given session has its size")
        return session
