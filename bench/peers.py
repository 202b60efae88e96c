"""ik_llama.cpp on the same file, measured in a process of its own.

`python -m riverrun.bench.peers FILE N_CTX THREADS` answers each line {"test", "n", "repetitions"}
on standard input with a row of results. A process apart keeps the peer's threads, log and aborts
away from riverrun."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from ..graph.errors import BackendError
from .measure import repeat
from .throughput import PROMPT, Workload, token_ids

NAME = "ik_llama.cpp"
PACKAGE = "ik_llama_cpp"
_BATCH = 512
_READY = "ready"


class Peer:
    """The peer's process. Raises BackendError when it is not installed or cannot run the file."""

    def __init__(self, path: Path, n_ctx: int, threads: int) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            raise BackendError(
                f"the peer {NAME} is not installed; pip install 'riverrun[bench]', or leave out "
                "--peer"
            )
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        command = [sys.executable, "-m", __name__, str(path), str(n_ctx), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def measure(self, test: Workload, repetitions: int) -> dict[str, Any]:
        """A row of results like those of `throughput.Bench.measure`."""
        assert self._process.stdin is not None
        request = {"test": test.name, "n": test.n, "repetitions": repetitions}
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> BackendError:
        self._process.wait()
        self._log.seek(0)
        log = self._log.read().decode("utf-8", "replace").splitlines()
        # Its own last line on the fault says more than the exception of the bindings after it.
        lines = [line.strip() for line in log if line.strip()] or ["no message"]
        last = [line for line in lines if "error" in line and "Error" not in line] or lines
        return BackendError(
            f"the peer {NAME} failed with code {self._process.returncode}: {last[-1]}"
        )


class _IkLlama:
    """One context of ik_llama.cpp through its low-level Python bindings."""

    def __init__(self, path: str, n_ctx: int, threads: int) -> None:
        from ik_llama_cpp import _ctypes_api as api
        from ik_llama_cpp._internals import IkModel

        self._api: ModuleType = api
        self._model = IkModel(path)
        self.n_vocab: int = self._model.n_vocab
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, _BATCH, _BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn = True
        self._context = api.llama_init_from_model(self._model.model, params)
        if not self._context:
            raise RuntimeError("no context")
        self._batch = api.llama_batch_init(_BATCH, 0, 1)

    def clear(self) -> None:
        self._api.llama_kv_cache_clear(self._context)

    def evaluate(self, tokens: Sequence[int], first: int, all_logits: bool) -> np.ndarray:
        """Evaluate up to 512 tokens from position `first`; logits of the last, f32 [n_vocab]."""
        batch, last = self._batch, len(tokens) - 1
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == last
        code = self._api.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens returned {code}")
        row = self._api.llama_get_logits_ith(self._context, last)
        return np.ctypeslib.as_array(row, (self.n_vocab,))

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        logits = np.empty(0, np.float32)
        for first in range(0, len(tokens), _BATCH):
            logits = self.evaluate(tokens[first : first + _BATCH], first, False)
        return logits


def _pass(peer: _IkLlama, test: Workload, repetitions: int) -> dict[str, float]:
    tokens = token_ids(peer.n_vocab, test.n)

    def run() -> None:
        if test.kind == "step":
            peer.evaluate(tokens, 0, True)
        else:
            peer.prefill(tokens)

    times = repeat(run, repetitions, peer.clear)
    return {**times.rates(test.n), "ms_median": 1e3 * times.median}


def _decode(peer: _IkLlama, test: Workload, repetitions: int) -> dict[str, float]:
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


def _serve(path: str, n_ctx: str, threads: str) -> None:
    peer = _IkLlama(path, int(n_ctx), int(threads))
    print(json.dumps(_READY), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        test = Workload(request["test"], request["n"])
        run = _decode if test.name == "decode" else _pass
        print(json.dumps(run(peer, test, request["repetitions"])), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
