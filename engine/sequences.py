"""The sequences of a session: what they hold, and prompts that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..backends.base import KeptParts
from ..graph.errors import RequestError
from ..models.step import Choice
from .bound_step import Part
from .buckets import sequence_buckets
from .items import checked_ids, common_length
from .memory import Reservation
from .passes import MOST_AGAIN, Passes
from .prompts import LAST, Prompt, cuts, pass_kind
from .session_memory import Reuse


class Sequences(Passes):
    """Passes, and what is kept and forgotten between them. One caller at a time."""

    def length(self, seq: int = 0) -> int:
        """Tokens of a sequence, those that are due included, pending ones not."""
        seq = self._usable(seq)
        return self.memory.length(seq) + len(self._due[seq])

    def tokens(self, seq: int = 0) -> list[int]:
        """The tokens that `length` counts."""
        seq = self._usable(seq)
        return self._tokens[seq][: self.memory.length(seq)] + self._due[seq]

    def evaluated(self, seq: int = 0) -> int:
        """Committed tokens of a sequence."""
        return self.memory.length(self._usable(seq))

    def is_lost(self, seq: int) -> bool:
        """Whether an exception left a sequence in pieces; `clear` empties it."""
        return self._sequence(seq) in self._changing

    def holds(self, seq: int) -> bool:
        """Whether a sequence holds anything, be it in pieces."""
        return self.is_lost(seq) or self.memory.length(seq) + len(self._due[seq]) > 0

    def alike(self, prompt: Sequence[int]) -> dict[int, int]:
        """The sequences that have evaluated tokens which a prompt begins with: how many, one less
        than all of the prompt at most."""
        found, first, most = dict[int, int](), prompt[0], len(prompt) - 1
        for seq, tokens in enumerate(self._tokens):
            if tokens and tokens[0] == first and seq not in self._changing:
                held = min(self.memory.length(seq), most)
                if common := common_length(tokens, prompt, held):
                    found[seq] = common
        return found

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Tokens that belong to the text without having been evaluated: they are due, and run in
        front of the sequence's next pass. Raises RequestError while tokens are pending."""
        seq, ids = self._usable(seq), checked_ids(tokens, self.model.n_vocab)
        self.require_none_pending(seq)
        self._due[seq] = [*self._due[seq], *ids]

    def clear(self, seq: int = 0) -> None:
        """Forget a sequence, pending tokens included; a lost one is empty and usable again."""
        seq = self._sequence(seq)
        self._changing.add(seq)
        self.memory.reset(seq)
        self._tokens[seq], self._due[seq] = [], []
        self.storage.forget_states(seq, 0)
        self._changing.discard(seq)

    def drop_pending(self, seq: int) -> None:
        """Forget pending tokens, and with them whatever cannot be kept without them: committed
        tokens of which that is so run again in front of the next pass."""
        seq = self._usable(seq)
        if not self.memory.pending(seq):
            return
        self._changing.add(seq)
        if self.memory.can_commit(seq, 0):
            self.memory.commit(seq, 0)
        else:
            self.memory.lose(seq)
        del self._tokens[seq][self.memory.length(seq) :]
        self._changing.discard(seq)

    def can_remove(self, seq: int, start: int) -> bool:
        """Whether the tokens from position start on can be forgotten."""
        seq = self._usable(seq)
        return self.memory.can_remove(seq, min(start, self.memory.length(seq)))

    def remove(self, seq: int, start: int) -> None:
        """Forget the tokens from position start on. Raises RequestError, and changes nothing, if
        the memory cannot."""
        seq = self._usable(seq)
        length = self.memory.length(seq)
        if start > length and not self.memory.pending(seq):
            self._due[seq] = self._due[seq][: start - length]
            return
        self._changing.add(seq)
        try:
            self.memory.remove(seq, start)
        except RequestError:
            self._changing.discard(seq)
            raise
        self._due[seq] = []
        self._forget_behind(seq)

    def forget_last(self, seq: int, n: int) -> None:
        """Forget the last n committed tokens, of passes that failed only after their commit: what
        they may have damaged is rebuilt by running committed tokens again."""
        seq = self._usable(seq)
        self._changing.add(seq)
        self.memory.lose_last(seq, n)
        self._forget_behind(seq)

    def shorten(self, seq: int, length: int, failed: bool = False) -> None:
        """Keep the first `length` committed tokens, running them again where the memory cannot go
        back by itself. failed: what later passes left behind may be wrong."""
        if failed or not self.can_remove(seq, length):
            self.forget_last(seq, self.evaluated(seq) - length)
        else:
            self.remove(seq, length)

    def reuse(self, tokens: Sequence[int], seq: int = 0) -> int:
        """Keep of a sequence what it shares with the start of a prompt, so that only the rest
        of the prompt, one token at least, is left to evaluate; returns the number kept.

        A recurrent state goes back to the nearest one that was kept on the way."""
        return self.go_back(tokens, seq).kept

    def go_back(self, tokens: Sequence[int], seq: int) -> Reuse:
        """What `reuse` does; says why not all of the common tokens are kept."""
        seq = self._sequence(seq)
        if seq in self._changing:
            self.clear(seq)
        self.drop_pending(seq)
        common = common_length(self._tokens[seq], tokens, len(tokens) - 1)
        self._changing.add(seq)
        self._due[seq] = []
        found = self.storage.reuse(seq, common)
        self._forget_behind(seq)
        return found

    def adopt(self, src: int, seq: int, tokens: Sequence[int]) -> Reuse:
        """Let the empty sequence seq go on from as much as can be of these tokens, with which what
        src holds begins: a sequence, or a text parked behind them, that stays as it is."""
        seq = self._usable(seq)
        self._changing.add(seq)
        found = self.storage.adopt(src, seq, len(tokens))
        self._tokens[seq] = list(tokens[: found.kept])
        self._changing.discard(seq)
        return found

    def recall(
        self,
        seq: int,
        tokens: Sequence[int],
        pages: Sequence[Mapping[str, np.ndarray]],
        kept: KeptParts,
    ) -> None:
        """Let the empty sequence seq hold these tokens, of which pages and state lie in host
        memory."""
        seq = self._usable(seq)
        self._changing.add(seq)
        self.storage.recall(seq, len(tokens), pages, kept)
        self._tokens[seq] = list(tokens)
        self._changing.discard(seq)

    def copy(self, src: int, dst: int) -> None:
        """Let the empty sequence dst go on from what src holds; attention pages are shared until
        one of them writes. Raises RequestError when dst is not empty or tokens are pending."""
        src, dst = self._usable(src), self._usable(dst)
        self.settle(src)
        self._changing.add(dst)
        try:
            self.memory.copy(src, dst)
        except RequestError:
            self._changing.discard(dst)
            raise
        self._tokens[dst] = list(self._tokens[src])
        self._changing.discard(dst)

    def save(self, seq: int = 0) -> bytes:
        """Everything that a sequence holds, for `restore`."""
        seq = self._usable(seq)
        self.settle(seq)
        return self.storage.save(self.model.fingerprint, seq, self._tokens[seq])

    def restore(self, data: bytes, seq: int = 0) -> None:
        """Bring back what `save` gave, in a session over the same model and memory types.

        Raises RequestError, and changes nothing, for data that are damaged or of another model or
        when the sequence is not empty."""
        seq = self._usable(seq)
        self._changing.add(seq)
        try:
            tokens = self.storage.restore(self.model.fingerprint, seq, data)
        except RequestError:
            self._changing.discard(seq)
            raise
        self._tokens[seq] = tokens
        self._changing.discard(seq)

    def saved_tokens(self, data: bytes) -> list[int]:
        """The tokens of what `save` gave. Raises RequestError as `restore` does for data that are
        damaged or of another model, or tokens that do not fit."""
        tokens = self.storage.saved_tokens(self.model.fingerprint, data)
        if len(tokens) > self.n_ctx:
            raise RequestError(
                f"{len(tokens)} saved tokens do not fit in a context of {self.n_ctx}; use a larger "
                "context (n_ctx)"
            )
        return tokens

    def cuts(self, seq: int, n: int) -> list[int]:
        """Sizes of the passes of a prompt of n tokens behind what the sequence holds."""
        storage = self.storage
        grid = (storage.grid or 1) if storage.cuts_freely else 1
        early = storage.remembers_last(LAST)
        return list(cuts(self.length(seq), n, storage.chunk, early, grid))

    def prompt_kind(self, n: int) -> str:
        """The kind of plan that a pass over n tokens of a prompt runs: where cuts are free at
        multiples of a grid, one token alone runs what it would among others."""
        alike = self.storage.cuts_freely and self.storage.grid is not None
        return "prefill" if alike else pass_kind(n)

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> np.ndarray:
        """Evaluate a prompt in chunks; logits f32 [n_vocab] of its last token.

        Chunks end at absolute multiples of `chunk` positions (SessionMemory), so that a prompt that
        is continued from a prefix is cut like a whole one. Raises RequestError when the context is
        too small."""
        prompt = Prompt(self, self._usable(seq), tokens)
        found = None
        while not prompt.done:
            _, found = prompt.step()
        assert found is not None
        return found.logits[0]

    def decode(self, token: int, seq: int = 0) -> np.ndarray:
        """Evaluate one token; its logits f32 [n_vocab], valid until the next pass."""
        return self.evaluate([(seq, (token,))]).logits[0]

    def advance(
        self,
        tokens: Sequence[tuple[int, int]],
        start: Callable[[Sequence[Part]], None],
        sure: bool,
    ) -> None:
        """Begin a pass of one token of each sequence, which counts as committed: [(sequence,
        token), ...], where `name_last` may say later what the token is. start: called with the
        parts of the pass, to put it on the device; sure: none of the tokens will be forgotten."""
        seqs = [seq for seq, _ in tokens]
        parts = [Part(seq, (token,), 0, self.memory.length(seq)) for seq, token in tokens]
        self._changing.update(seqs)
        batch = [Reservation(seq, 1, int(sure)) for seq in seqs]
        try:
            self.memory.reserve(batch)
        except RequestError:
            self._changing.difference_update(seqs)
            raise
        try:
            start(parts)
        except BaseException:
            for seq in seqs:
                self._lose(seq)
            raise
        self.memory.commit_all(batch)
        for seq, token in tokens:
            self._tokens[seq].append(token)
        self._changing.difference_update(seqs)

    def last_token(self, seq: int, before: int = 0) -> int:
        """The newest committed token, or one so many before it."""
        return self._tokens[seq][-1 - before]

    def name_last(self, seq: int, token: int) -> None:
        """Say what the last token is that `advance` has evaluated."""
        self._tokens[seq][-1] = token

    def prepare(self, n_tokens: int, seq: int = 0, hidden: bool = False) -> None:
        """Compile what a prompt of n_tokens will run, so that its time is that of evaluation."""
        for n in set(self.cuts(seq, n_tokens)):
            self.runner.step(n, 1, 1, hidden, self.prompt_kind(n))

    def prepare_drafts(self, most: int, hidden: bool = False, choice: Choice | None = None) -> None:
        """Compile what verifying up to `most` drafts of some or all sequences will run. choice:
        what passes give in place of logits. Raises Unsupported where the device cannot."""
        again, prepare = MOST_AGAIN if self.storage.reruns else 0, self.runner.prepare
        for n in sequence_buckets(self.n_seqs):
            prepare("all", n // 2 + 1, n * (most + 1 + again), n, hidden, choice)
        if again:
            prepare("none", 1, again + most)
        if self.plan.capacity.log:
            self.runner.fold_step()
