"""A generation: one request, stepped by whoever wants its text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .engine import Engine
from .request import Request
from .result import Result
from .sampler import Sampler
from .timings import Timings

if TYPE_CHECKING:
    from .model import Model
    from .session import Session


class Generation:
    """A generation in progress: iterate over its pieces of text, then read `result`.

    It has the session until it ends, is closed, or is dropped. An exception inside a step, such as
    KeyboardInterrupt, leaves it where it was, and it can be gone on with."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine, self.request = engine, request
        self._given = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        request = self.request
        while self._given == request.n_pieces:
            if request.result is not None:
                self._finish()
                raise StopIteration
            self.engine.step()
        self._given += 1
        return request.piece(self._given - 1)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Generation {self.request!r}>"

    def close(self) -> None:
        """Break off; the session keeps what was evaluated, `result` what was generated."""
        self.request.cancel()
        self.engine.close()

    @property
    def result(self) -> Result:
        """The finished result; runs what has not run yet. Raises what the request failed with."""
        while self.request.result is None:
            self.engine.step()
        self._finish()
        return self.request.result

    @property
    def model(self) -> Model:
        """The model."""
        return self.engine.model

    @property
    def session(self) -> Session:
        """The session whose sequence 0 it continues."""
        return self.engine.session

    @property
    def tokens(self) -> list[int]:
        """The tokens generated so far."""
        return self.request.tokens

    @property
    def timings(self) -> Timings:
        """Times so far."""
        return self.request.timings

    @property
    def sampler(self) -> Sampler:
        """What chooses its tokens."""
        return self.request.sampler

    def _finish(self) -> None:
        self.engine.close()
        error, self.request.error = self.request.error, None
        if error is not None:
            raise error
