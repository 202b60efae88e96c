"""Other engines on the same file, each measured in a process of its own.

`python -m riverrun.bench.peers NAME FILE N_CTX THREADS` is such a process (`apart.answer`)."""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.errors import BackendError
from .apart import Apart, Row, answer, read_names
from .measure import repeat
from .throughput import PROMPT, Workload, token_ids

# What each peer is imported as; pip's name for it has "-python" behind it.
PACKAGES = {"ik_llama.cpp": "ik_llama_cpp", "llama.cpp": "llama_cpp"}
_BATCH = 512


def installed() -> tuple[str, ...]:
    """The names of the peers that are here."""
    return tuple(n for n, package in PACKAGES.items() if importlib.util.find_spec(package))


def read_peers(text: str) -> tuple[str, ...]:
    """The peers of "NAME,NAME...". Raises ValueError for what is none, and for one twice."""
    return read_names(text, tuple(PACKAGES), "peer")


def check_installed(names: Sequence[str]) -> None:
    """Raise BackendError where one of these is not installed, or there are none."""
    here = installed()
    for name in names or PACKAGES:
        if name not in here and (names or not here):
            package = PACKAGES[name].replace("_", "-")
            raise BackendError(
                f"the peer {name} is not installed; pip install {package}-python, or leave it out"
            )


def open_peer(name: str, path: Path, n_ctx: int, threads: int) -> Apart:
    """A peer's process. Raises BackendError when it cannot run the file."""
    return Apart(f"the peer {name}", __name__, (name, str(path), str(n_ctx), str(threads)))


class _Llama(ABC):
    """One context of an engine that has llama.cpp's C interface, through low-level bindings."""

    api: Any
    context: Any
    n_vocab: int

    def __init__(self, path: str, n_ctx: int, threads: int) -> None:
        model = self.load(path)
        params = self.api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, _BATCH, _BATCH
        params.n_threads = params.n_threads_batch = threads
        self.use_flash_attention(params)
        self.context = self.api.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError("no context")
        self._batch = self.api.llama_batch_init(_BATCH, 0, 1)

    @abstractmethod
    def load(self, path: str) -> Any:
        """The model; sets api and n_vocab."""

    @abstractmethod
    def use_flash_attention(self, params: Any) -> None:
        """Ask for it."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the sequence."""

    def evaluate(self, tokens: Sequence[int], first: int, all_logits: bool) -> np.ndarray:
        """Evaluate up to 512 tokens from position `first`; logits of the last, f32 [n_vocab]."""
        batch, last = self._batch, len(tokens) - 1
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == last
        code = self.api.llama_decode(self.context, batch)
        if code:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens returned {code}")
        row = self.api.llama_get_logits_ith(self.context, last)
        return np.ctypeslib.as_array(row, (self.n_vocab,))

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Evaluate tokens in batches of 512; logits of the last."""
        logits = np.empty(0, np.float32)
        for first in range(0, len(tokens), _BATCH):
            logits = self.evaluate(tokens[first : first + _BATCH], first, False)
        return logits

    def measure(self, test: Workload, repetitions: int) -> Row:
        """A row of results."""
        return (_decode if test.name == "decode" else _pass)(self, test, repetitions)


class _IkLlama(_Llama):
    def load(self, path: str) -> Any:
        from ik_llama_cpp import _ctypes_api as api
        from ik_llama_cpp._internals import IkModel

        self.api, self._model = api, IkModel(path)
        self.n_vocab = self._model.n_vocab
        return self._model.model

    def use_flash_attention(self, params: Any) -> None:
        params.flash_attn = True

    def clear(self) -> None:
        self.api.llama_kv_cache_clear(self.context)


class _LlamaCpp(_Llama):
    def load(self, path: str) -> Any:
        import llama_cpp as api

        self.api = api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        model = api.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise RuntimeError(f"{path} was not loaded")
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        return model

    def use_flash_attention(self, params: Any) -> None:
        params.flash_attn_type = self.api.LLAMA_FLASH_ATTN_TYPE_ENABLED

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)


_ENGINES: dict[str, type[_Llama]] = {"ik_llama.cpp": _IkLlama, "llama.cpp": _LlamaCpp}


def _pass(peer: _Llama, test: Workload, repetitions: int) -> Row:
    tokens = token_ids(peer.n_vocab, test.n)

    def run() -> None:
        if test.kind == "step":
            peer.evaluate(tokens, 0, True)
        else:
            peer.prefill(tokens)

    times = repeat(run, repetitions, peer.clear)
    return {**times.rates(test.n), "ms_median": 1e3 * times.median}


def _decode(peer: _Llama, test: Workload, repetitions: int) -> Row:
    token = 0

    def prompt() -> None:
        nonlocal token
        peer.clear()
        token = int(np.argmax(peer.prefill(token_ids(peer.n_vocab, PROMPT))))

    def decode() -> None:
        nonlocal token
        for i in range(test.n):
            token = int(np.argmax(peer.evaluate((token,), PROMPT + i, False)))

    times = repeat(decode, repetitions, prompt)
    return {**times.rates(test.n), "ms_median": 1e3 * times.median / test.n}


def main(arguments: Sequence[str]) -> None:
    """A peer's process."""
    name, path, n_ctx, threads = arguments
    peer = _ENGINES[name](path, int(n_ctx), int(threads))
    # What cannot run at all is told before anything is measured.
    peer.evaluate((0,), 0, True)
    answer(name, peer.measure)


if __name__ == "__main__":
    main(sys.argv[1:])
