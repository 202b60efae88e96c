"""Speculation as a generation's source of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..engine.chooser import Chooser
from ..engine.decoding import Decoding, register_opener
from ..engine.model import Model
from ..engine.session import Session
from .options import as_speculation
from .speculator import Entry, Speculator, check_session


class SpeculativeDecoding(Decoding):
    """Rounds of one sequence."""

    def __init__(self, speculator: Speculator, seq: int = 0) -> None:
        super().__init__(speculator.session, seq)
        self.speculator = speculator

    def prepare(self, n_tokens: int, chooser: Chooser) -> None:
        """The passes of a prompt that drafters watch."""
        self.session.prepare(n_tokens, self.seq, self.speculator.hidden)

    def prompt(self, tokens: Sequence[int], kept: int) -> np.ndarray:
        """The target's prefill, which the drafters watch."""
        session = self.session
        if not kept and session.length(self.seq):
            # The prompt continues what the session holds already.
            kept = session.length(self.seq)
            tokens = [*session.tokens(self.seq), *tokens]
        return self.speculator.prompt(self.seq, tokens, kept)

    def round(self, token: int, chooser: Chooser, left: int | None) -> Iterator[int]:
        """One round; what the consumer did not take is not committed."""
        judged = self.speculator.round([Entry(self.seq, token, chooser, left)])[0]
        rule, taken, ended = self.speculator.asked.judge, [], True
        try:
            for chosen in rule(chooser, judged.logits, judged.draft, judged.position):
                taken.append(chosen)
                yield chosen
            ended = False
        finally:
            self.speculator.finish(judged, taken, ended)

    def close(self) -> None:
        """What drafters keep."""
        self.speculator.close()

    def statistics(self) -> dict[str, Any]:
        """Drafts and times."""
        return self.speculator.statistics.as_dict()


def open_speculative(
    model: Model, session: Session | None, n_ctx: int | None, asked: Any
) -> SpeculativeDecoding:
    """What `generate(speculative=...)` decodes with. asked: names, Speculation or Speculator."""
    if isinstance(asked, Speculator):
        return SpeculativeDecoding(asked)
    speculation = as_speculation(asked)
    session = session or model.session(n_ctx, n_rs_seq=speculation.longest)
    check_session(session, speculation)
    return SpeculativeDecoding(Speculator(session, speculation))


register_opener(open_speculative)
