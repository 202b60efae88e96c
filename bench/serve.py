"""A server under load: prompts of given lengths from clients that wait for their answers, or at a
rate whether answers come or not, every answer streamed and timed where it arrives."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..graph.errors import RequestError
from ..graph.fields import Check, check_fields, integer, number, one_of, option
from .serve_client import APIS, Body, Client, Reply, request_body

MOST = 2**31 - 1
Progress = Callable[[int, int], None]
_WORDS = (
    "river stone lamp garden engine paper window cloud market silver hammer forest letter bridge "
    "winter copper island basket signal harbor timber candle meadow feather anchor thunder velvet "
    "orchard mirror pocket saddle lantern"
)
_SIZES = (32, 96)  # words of the prompts by which tokens are counted
_POSITIVE = number("a number above 0", lambda value: value > 0)


def _several(least: int, most: int) -> Check:
    return Check(
        f"integers in {least} .. {most} separated by commas",
        lambda values: bool(values) and all(least <= value <= most for value in values),
    )


def read_numbers(text: str) -> tuple[int, ...]:
    """The numbers of "N,N,...". Raises ValueError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected integers separated by commas, got {text!r}") from None


@dataclass(frozen=True)
class Load:
    """What is asked of a server, and how fast. Raises RequestError for values out of range and for
    a load without an end or without a pace."""

    clients: int | None = option(
        None,
        "--clients",
        metavar="N",
        help="Clients, each of which sends a request when its last one is answered.",
        check=integer(1, 65536),
        shown="1, without --rate",
    )
    rate: float | None = option(
        None,
        "--rate",
        metavar="R",
        help="Requests a second, at random moments (Poisson), answered or not.",
        check=_POSITIVE,
        kind=float,
    )
    requests: int | None = option(
        None,
        "--requests",
        metavar="N",
        help="Requests in all.",
        check=integer(1, MOST),
        shown="32, without --seconds",
    )
    seconds: float | None = option(
        None,
        "--seconds",
        metavar="S",
        help="No request begins later; those that have begun are waited for.",
        check=_POSITIVE,
        kind=float,
    )
    prompt_tokens: tuple[int, ...] = option(
        (512,),
        "--prompt-tokens",
        metavar="N,N,...",
        help="Tokens of the prompts, about; several take turns.",
        check=_several(1, MOST),
        read=read_numbers,
        shown="512",
    )
    n: int = option(
        128, "-n", "--n-predict", metavar="N", help="Tokens to generate.", check=integer(1, MOST)
    )
    api: str = option(
        "completions",
        "--api",
        metavar="NAME",
        help=f"What is asked: {', '.join(APIS)}.",
        check=one_of(APIS),
    )
    ignore_eos: bool = option(
        False, "--ignore-eos", help="Generate on past the end token, where the server lets one ask."
    )
    temperature: float = option(
        0.0, "--temp", metavar="T", help="Temperature.", check=number(">= 0", lambda t: t >= 0)
    )
    seed: int = option(
        0, "--seed", metavar="S", help="Of prompts and moments.", check=integer(0, MOST)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rate is not None and self.clients is not None:
            raise RequestError(
                "rate: clients wait for answers, a rate does not; give one of the two", "rate"
            )

    @property
    def at_once(self) -> int:
        """Clients, where there is no rate."""
        return self.clients or 1

    @property
    def most(self) -> int:
        """Requests in all, where time does not end it earlier."""
        return self.requests or (32 if self.seconds is None else MOST)


@dataclass
class Measured:
    """All answers, in the order in which they ended, between two moments in seconds of
    time.perf_counter. dropped: fields of a request that the server does not take."""

    model: str
    began: float = 0.0
    ended: float = 0.0
    replies: list[Reply] = field(default_factory=list)
    dropped: tuple[str, ...] = ()


def words(count: int, seed: int, index: int) -> str:
    """A text of so many words, another one for each index."""
    rng, known = random.Random(f"{seed}-{index}"), _WORDS.split()
    return " ".join(rng.choice(known) for _ in range(count))


class Lengths:
    """How many words make how many tokens: a line through two counts."""

    def __init__(self, counted: Sequence[tuple[int, int]]) -> None:
        """counted: (words, tokens) of two prompts. Raises RequestError unless more words are more
        tokens."""
        (few, low), (many, high) = counted
        if high <= low:
            raise RequestError(
                f"{many} words are {high} tokens of this server and {few} words {low}; prompts of "
                "a given length cannot be made"
            )
        self._each = (high - low) / (many - few)
        self._fixed = low - few * self._each

    def words(self, tokens: int) -> int:
        """The words of a prompt of so many tokens, 1 at least."""
        return max(1, round((tokens - self._fixed) / self._each))


class ServeBench:
    """One measurement of a server."""

    def __init__(self, client: Client, load: Load, model: str = "") -> None:
        """model: its name; "" for the first that the server lists."""
        self.client, self.load = client, load
        self._model, self._optional = model, Body()
        self._words: list[int] = []

    async def run(self, progress: Progress = lambda done, failed: None) -> Measured:
        """Find out what the server takes, then measure it. Raises ServerError before the first
        measured request; later ones keep their errors.

        progress: called with the numbers of answers and of errors so far."""
        await self._prepare()
        found = Measured(self._model, dropped=self._dropped())
        found.began = time.perf_counter()
        go = self._at_clients if self.load.rate is None else self._at_rate
        await go(found, progress)
        found.ended = max((reply.ended for reply in found.replies), default=found.began)
        return found

    async def _prepare(self) -> None:
        """Learn the model, the optional fields that it takes and the lengths of its words. The
        answers also warm the server up."""
        client, load = self.client, self.load
        self._model = self._model or await client.model()
        counted = []
        for place, size in enumerate(_SIZES):
            body = request_body(load.api, self._model, words(size, load.seed, -1 - place), 1)
            counted.append((size, await client.count(load.api, body)))
        lengths = Lengths(counted)
        self._words = [lengths.words(tokens) for tokens in load.prompt_tokens]
        body = request_body(load.api, self._model, words(_SIZES[0], load.seed, -3), 2)
        choices = optional_fields(load.ignore_eos)
        self._optional = await client.accepted(load.api, body, choices)
        client.reserve(min(load.at_once, load.most))

    def _dropped(self) -> tuple[str, ...]:
        wanted = optional_fields(self.load.ignore_eos)[0]
        return tuple(name for name in wanted if name not in self._optional)

    async def _at_clients(self, found: Measured, progress: Progress) -> None:
        """Every client takes the next request when it has its answer."""
        load, taken = self.load, iter(range(self.load.most))
        until = found.began + (load.seconds or math.inf)

        async def client() -> None:
            while time.perf_counter() < until:
                index = next(taken, None)
                if index is None:
                    return
                await self._one(index, None, found, progress)

        await asyncio.gather(*(client() for _ in range(min(load.at_once, load.most))))

    async def _at_rate(self, found: Measured, progress: Progress) -> None:
        """Requests begin when they are due, however many wait. What comes of the client's own
        delay counts as the server's, so that a full machine does not look fast."""
        load, due = self.load, found.began
        until = due + (load.seconds or math.inf)
        assert load.rate is not None
        waiting = []
        for index, pause in enumerate(islice(pauses(load.rate, load.seed), load.most)):
            due += pause
            if due >= until:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            waiting.append(asyncio.create_task(self._one(index, due, found, progress)))
        await asyncio.gather(*waiting)

    async def _one(
        self, index: int, due: float | None, found: Measured, progress: Progress
    ) -> None:
        load, group = self.load, index % len(self._words)
        prompt = words(self._words[group], load.seed, index)
        more = {"temperature": load.temperature, **self._optional}
        body = request_body(load.api, self._model, prompt, load.n, **more)
        reply = await self.client.stream(load.api, body, due)
        reply.group = load.prompt_tokens[group]
        found.replies.append(reply)
        progress(len(found.replies), sum(bool(reply.error) for reply in found.replies))


def optional_fields(ignore_eos: bool) -> list[Body]:
    """What a request would have besides what every server knows, in the order of trying."""
    usage: Body = {"stream_options": {"include_usage": True}}
    end: Body = {"ignore_eos": True} if ignore_eos else {}
    tried = [{**end, **usage}, usage, end, {}]
    return [each for at, each in enumerate(tried) if each not in tried[:at]]


def pauses(rate: float, seed: int) -> Iterator[float]:
    """Seconds between requests that come at random, `rate` a second (exponential); endless."""
    rng = random.Random(f"pauses-{seed}")
    while True:
        yield rng.expovariate(rate)
