"""A loaded model: file, tokenizer, backend, weights; it makes sessions and generates."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..backends import Plan
from ..backends.debug import watched
from ..graph import Graph
from ..models import ModelFile, load_file
from ..models.step import DRAFT_HEAD, Capacity, StepShape
from ..models.tokenizer import Tokenizer
from .constraints import Constraint, compile_constraint
from .constraints.kinds import Source
from .decoding import open_decoding
from .generate import Generation, Options
from .offload import Offload, open_for
from .sampler import SamplerParams
from .session import Session
from .session_plan import SessionOptions, SessionPlan, plan_session

SAMPLE = 256  # bytes of each end of a tensor that go into the fingerprint
Progress = Callable[[int, int], None]


class Model:
    """A model on a device. May serve many sessions and threads; plans are shared by all."""

    def __init__(
        self,
        source: ModelFile,
        device: str = "auto",
        threads: int | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.source = source
        self.backend = watched(open_for(source, device, threads, offload or Offload()))
        self.weights: Any = self.backend.load_weights(source.weights)
        self._plans: dict[tuple[StepShape, Capacity, str, str], Plan] = {}
        self._lock = threading.Lock()

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

    @cached_property
    def fingerprint(self) -> str:
        """Tells this model from others: a hash of its hyperparameters and of its tensors' names,
        types, shapes and samples."""
        arch = self.source.arch
        digest = hashlib.sha256(f"{arch.name} {arch.hp}".encode())
        for name, tensor in self.source.weights.items():
            if name == DRAFT_HEAD:
                continue
            digest.update(f"{name} {tensor.spec}".encode())
            digest.update(tensor.raw[:SAMPLE].tobytes() + tensor.raw[-SAMPLE:].tobytes())
        return digest.hexdigest()

    def plan(self, shape: StepShape, capacity: Capacity, kind: str, program: str = "trunk") -> Plan:
        """The compiled step of a program for these sizes; compiled once. program: "trunk", "mtp"
        (the block that predicts further tokens), "folds" (recurrent ops alone) or "ahead" (a
        step whose token is the one that the pass before picked, and which picks the next)."""
        key = (shape, capacity, kind, program)
        with self._lock:
            if key not in self._plans:
                graph = self._build(shape, capacity, program)
                self._plans[key] = self.backend.compile(graph, kind)
            return self._plans[key]

    def _build(self, shape: StepShape, capacity: Capacity, program: str) -> Graph:
        arch, specs = self.source.arch, self.source.specs
        if program == "ahead":
            return arch.ahead(shape, capacity, specs, self.tokenizer.n_vocab or self.n_vocab)
        build = {"trunk": arch.build, "mtp": arch.mtp, "folds": arch.folds}[program]
        return build(shape, capacity, specs)

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
        """What one generation's text must conform to: `compile_constraint` on this model's tokens.

        kind: "json_schema", "json_object", "regex" or "grammar". Needs the extra `grammar`."""
        return compile_constraint(self.tokenizer, kind, source)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt, with the begin token where the model wants one; special tokens
        in the text are recognised."""
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = -1,
        *,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        session: Session | None = None,
        n_ctx: int | None = None,
        cache_prompt: bool = False,
        speculative: Any = None,
        constraint: Constraint | None = None,
        **sampling: Any,
    ) -> Generation:
        """Continue a prompt (text or token ids), lazily: iterate for pieces of text, then read
        `.result`.

        max_tokens: -1 runs to the end token or the context's end. stop: texts that end it.
        session: a session to continue in, else a fresh one of n_ctx tokens. cache_prompt: the
        prompt is the whole text, and the session keeps the part that it already holds.
        speculative: drafters by name ("mtp", "ngram-mod,mtp"), or a Speculation or Speculator of
        riverrun.speculative. constraint: what the text must conform to (engine/constraints).
        sampling: the fields of SamplerParams (temperature, top_k, top_p, min_p, seed, ...).
        Raises RequestError for values out of range and prompts that do not fit."""
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        options = Options(max_tokens, stops, ignore_eos, cache_prompt)
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        params = SamplerParams(**sampling)
        decoding = open_decoding(self, session, n_ctx, speculative)
        return Generation(self, decoding, tokens, params, options, constraint)


def load(
    path: str | os.PathLike[str],
    device: str = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
    draft_head: int = 0,
    offload: Offload | None = None,
    load: str = "map",
) -> Model:
    """Load a GGUF model onto a device: "auto", "cpu", "cuda", "cuda:1", "reference", or several
    with commas between; cards split it by layers.

    threads: for the CPU, by default what affinity and the cgroup quota allow. progress is called
    with (bytes done, bytes in all). draft_head: offer the first so many tokens of the vocabulary as
    a smaller head for drafts (Speculation.draft_head). offload: how many layers go to the cards.
    load: "map" reads weights from the file as they are used, which must not be written to while the
    model lives; "read" copies the file into memory. Raises ModelError or BackendError."""
    model = Model(load_file(path, draft_head, load), device, threads, offload)
    _warm(model, progress)
    return model


def _warm(model: Model, progress: Progress | None) -> None:
    """Bind one small step, which brings every weight into the layout that its kernel reads."""
    done, total = 0, model.source.nbytes

    def moved(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress:
            progress(min(done, total), total)

    model.weights.progress = moved
    model.session(n_ctx=1)
    model.weights.progress = None
    if progress:
        progress(total, total)
