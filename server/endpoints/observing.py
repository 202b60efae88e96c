"""/health, /metrics, /openapi.json: what watches and what generates clients."""

from __future__ import annotations

from ..endpoint import Call, endpoint
from ..http import Answer
from ..openapi import described
from ..wire.body import Nothing

# Of Occupancy, what metrics tell of memory.
MEMORY = ("pages", "pages_free", "state_bytes", "tokens_cached", "host_bytes", "host_copied")


@endpoint("/health", summary="Whether the server answers.", public=True)
async def health(call: Call[Nothing]) -> Answer:
    """It does."""
    return Answer({"status": "ok"})


@endpoint("/v1/health", summary="The same.", public=True)
async def health_v1(call: Call[Nothing]) -> Answer:
    """It does."""
    return Answer({"status": "ok"})


@endpoint("/metrics", summary="Counters in Prometheus' text format.")
async def metrics(call: Call[Nothing]) -> Answer:
    """All counters."""
    service = call.service
    for served in service.store.loaded:
        found = served.engine.occupancy()
        service.metrics.running.labels(served.name).set(found.active)
        service.metrics.waiting.labels(served.name).set(found.queued)
        for what in MEMORY:
            service.metrics.memory.labels(served.name, what).set(getattr(found, what))
    return Answer(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@endpoint("/openapi.json", summary="This interface as an OpenAPI document.", public=True)
async def openapi(call: Call[Nothing]) -> Answer:
    """The document."""
    return Answer(described())
