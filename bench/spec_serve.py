"""What drafts gain over HTTP: prompts answered by a server as it is, and with speculation off where
it lets a request choose that, greedily, each beside a check that both texts are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from ..graph.errors import ServerError
from .serve import optional_fields
from .serve_client import Body, Client, Reply, request_body
from .spec import parting

PLAIN, SERVED = "plain", "as served"
API = "completions"
Row = dict[str, Any]
Progress = Callable[[str, str], None]
# Without drafts: riverrun's field and llama-server's; no server has to know either.
_OFF: tuple[Body, ...] = (
    {"speculative": False, "speculative.n_max": 0},
    {"speculative": False},
    {"speculative.n_max": 0},
)


@dataclass(frozen=True)
class Pair:
    """The answers to a prompt, one for each repetition. plain: None where the server does not let
    a request choose."""

    prompt: str
    plain: list[Reply] | None
    served: list[Reply]


class SpecServeBench:
    """Asks one server. n: tokens to generate for each prompt, past the end token where the server
    lets one ask."""

    def __init__(
        self, client: Client, prompts: Mapping[str, str], n: int, repetitions: int, model: str = ""
    ) -> None:
        """model: its name; "" for the first that the server lists."""
        self.client, self.prompts, self.n, self.repetitions = client, prompts, n, repetitions
        self.model = model
        self._added = Body()
        self._off: Body | None = None

    async def run(self, progress: Progress = lambda prompt, what: None) -> list[Pair]:
        """Both answers to each prompt, taking turns. Raises ServerError for one that fails."""
        self.model = self.model or await self.client.model()
        first = next(iter(self.prompts.values()))
        body = request_body(API, self.model, first, 2, temperature=0.0)
        self._added = await self.client.accepted(API, body, optional_fields(ignore_eos=True))
        off = await self.client.accepted(API, {**body, **self._added}, (*_OFF, {}))
        self._off = off or None
        pairs = [await self._measure(name, progress) for name in self.prompts]
        # A server that knows neither field may have passed them over.
        obeyed = not any(_drafted(reply) for pair in pairs for reply in pair.plain or ())
        return pairs if obeyed else [replace(pair, plain=None) for pair in pairs]

    async def _measure(self, name: str, progress: Progress) -> Pair:
        plain: list[Reply] = []
        served: list[Reply] = []
        for _ in range(self.repetitions):
            if self._off is not None:
                progress(name, PLAIN)
                plain.append(await self._one(name, self._off))
            progress(name, SERVED)
            served.append(await self._one(name, {}))
        return Pair(name, plain or None, served)

    async def _one(self, name: str, more: Body) -> Reply:
        body = request_body(API, self.model, self.prompts[name], self.n, temperature=0.0)
        reply = await self.client.stream(API, {**body, **self._added, **more})
        if reply.error:
            raise ServerError(f"{self.client.url}, {name}: {reply.error}: {reply.message}")
        return reply


def make_url_report(bench: SpecServeBench, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One object that JSON can hold: a row for each prompt, and sums."""
    rows = [row_of(pair) for pair in pairs]
    drafted, kept = (sum(row[name] or 0 for row in rows) for name in ("drafted", "accepted"))
    chosen = [row for row in rows if row["plain_t_s"] is not None]
    plain_s, served_s = (
        sum(row["predicted"] / row[name] for row in chosen if row[name])
        for name in ("plain_t_s", "t_s")
    )
    return {
        "url": bench.client.url,
        "model": bench.model,
        "n_predict": bench.n,
        "repetitions": bench.repetitions,
        "plain": len(chosen) == len(rows),
        "rows": rows,
        "drafted": drafted,
        "accepted": kept,
        "rate": kept / drafted if drafted else None,
        "speedup": plain_s / served_s if plain_s and served_s else None,
        "passed": all(row["equal"] is not False for row in rows),
    }


def row_of(pair: Pair) -> Row:
    """The figures of the served answer of median speed, and whether all texts are one."""
    speeds = sorted(pair.served, key=speed)
    reply = speeds[(len(speeds) - 1) // 2]
    plain = sorted(map(speed, pair.plain)) if pair.plain else []
    plain_t_s = plain[(len(plain) - 1) // 2] if plain else None
    drafted, kept = (reply.timings.get(name) for name in ("draft_n", "draft_n_accepted"))
    place = _first_difference(pair)
    return {
        "prompt": pair.prompt,
        "prompt_n": reply.prompt_n,
        "predicted": reply.predicted_n,
        "plain_t_s": plain_t_s,
        "t_s": speed(reply),
        "speedup": speed(reply) / plain_t_s if plain_t_s else None,
        "drafted": drafted,
        "accepted": kept,
        "rate": kept / drafted if drafted and kept is not None else None,
        "equal": None if pair.plain is None else place is None,
        "first_difference": place,
    }


def speed(reply: Reply) -> float:
    """Tokens per second of decoding as the server timed it, or else by its events; 0.0 where there
    was no second event."""
    told = reply.timings.get("predicted_per_second")
    if isinstance(told, int | float) and told > 0:
        return float(told)
    seconds = reply.events[-1] - reply.events[0] if reply.events else 0.0
    return (reply.predicted_n - 1) / seconds if seconds > 0 else 0.0


def _first_difference(pair: Pair) -> int | None:
    """The first character at which a served text differs from the plain one, None for none. Texts
    that end in different places differ there."""
    if not pair.plain:
        return None
    wanted = pair.plain[0].text
    places = [parting(reply.text, wanted) for reply in (*pair.plain, *pair.served)]
    return min((at for at in places if at is not None), default=None)


def _drafted(reply: Reply) -> bool:
    return bool(reply.timings.get("draft_n"))


def print_url_report(report: dict[str, Any], console: Console) -> None:
    """A row for each prompt, then the sums."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say(
        f"{report['model']} at {report['url']}, {report['n_predict']} tokens, greedy, "
        f"median of {report['repetitions']}"
    )
    if not report["plain"]:
        say("this server does not let requests turn speculation off: nothing to compare with")
    table = Table(box=None, pad_edge=False)
    for head in ("prompt", "tokens", "drafted", "kept", "rate", "plain t/s", "t/s", "speed-up"):
        table.add_column(head, justify="left" if head == "prompt" else "right", no_wrap=True)
    table.add_column("equal", no_wrap=True)
    for row in report["rows"]:
        cells = [_number(row[name], "d") for name in ("predicted", "drafted", "accepted")]
        cells += [_number(row["rate"], ".2f")]
        cells += [_number(row[name], ".1f") for name in ("plain_t_s", "t_s")]
        table.add_row(row["prompt"], *cells, _number(row["speedup"], ".2f"), _verdict(row))
    console.print(table)
    if report["rate"] is not None:
        say(f"drafts kept: {report['accepted']} of {report['drafted']} ({report['rate']:.0%})")
    if report["speedup"] is not None:
        say(f"all prompts: {report['speedup']:.2f} times plain decoding")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _verdict(row: Row) -> str:
    if row["equal"] is None:
        return ""
    return "yes" if row["equal"] else f"no, from character {row['first_difference']}"
