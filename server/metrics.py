"""Counters of the server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..engine.request import Request

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter(
            "riverrun_http_requests",
            "Answers by path and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self.refused = self._counter("requests_refused", "Requests refused with a full queue.")
        self.ended = Counter(
            "riverrun_requests_ended",
            "Generations that ended, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.prompt = self._counter("prompt_tokens", "Prompt tokens that were evaluated.")
        self.cached = self._counter("cached_tokens", "Prompt tokens that were kept from before.")
        self.predicted = self._counter("predicted_tokens", "Tokens that were generated.")
        self.drafted = self._counter("draft_tokens", "Tokens that were drafted.")
        self.accepted = self._counter("draft_accepted_tokens", "Drafted tokens that were kept.")
        self.prompt_seconds = Histogram(
            "riverrun_prompt_seconds",
            "From the first pass of a prompt to its first token.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.predicted_seconds = self._counter("predicted_seconds", "Time of generating tokens.")
        self.running = Gauge(
            "riverrun_requests_running", "Requests that run.", ("model",), registry=self.registry
        )
        self.memory = Gauge(
            "riverrun_memory",
            "Pages of attention memory in all and free, bytes of kept states, cached tokens, bytes "
            "of texts in host memory.",
            ("model", "what"),
            registry=self.registry,
        )
        self.waiting = Gauge(
            "riverrun_requests_waiting", "Requests that wait.", ("model",), registry=self.registry
        )

    def note_result(self, request: Request) -> None:
        """A request has ended."""
        timings, result = request.timings, request.result
        self.ended.labels(result.finish_reason if result else "error").inc()
        self.prompt.inc(timings.prompt_n)
        self.cached.inc(timings.cache_n)
        self.predicted.inc(timings.predicted_n)
        self.predicted_seconds.inc(timings.predicted_ms / 1e3)
        self.drafted.inc(timings.extra.get("draft_n", 0))
        self.accepted.inc(timings.extra.get("draft_n_accepted", 0))
        if timings.prompt_ms:
            self.prompt_seconds.observe(timings.prompt_ms / 1e3)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"riverrun_{name}", what, registry=self.registry)
