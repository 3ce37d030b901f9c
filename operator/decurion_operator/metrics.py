"""What the operator counts about itself: Prometheus metrics with bounded labels, and exact counts per object.

A metric is labelled by kind, verb or code, never by an object: their number is not bounded. The exact counts per object
(`Tally`) serve budgets ("a graph applied once: at most 20 reconciles") and end with the object.
"""

from __future__ import annotations

from collections import Counter as Counts
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from decurion_operator.queue import Key


@dataclass(slots=True)
class Tally:
    """Exact counts of one process, per object."""

    reconciles: Counts[Key] = field(default_factory=Counts)
    writes: Counts[Key] = field(default_factory=Counts)
    """Status patches, events and deletes."""

    def forget(self, key: Key) -> None:
        self.reconciles.pop(key, None)
        self.writes.pop(key, None)


class Meter:
    """The metrics of one operator in a registry of its own, so that one process may hold several."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.registry = CollectorRegistry()
        r = self.registry
        self._reconciles = Histogram("decurion_reconcile_seconds", "Time of one reconcile.", ["kind"], registry=r)
        self._errors = Counter(
            "decurion_reconcile_errors_total", "Failed reconciles by error class.", ["kind", "error"], registry=r
        )
        self._api = Counter(
            "decurion_api_requests_total", "Calls to the API server.", ["verb", "kind", "code"], registry=r
        )
        self._bytes = Counter(
            "decurion_api_bytes_total", "Bytes of calls to the API server.", ["kind", "direction"], registry=r
        )
        self._pool = Counter(
            "decurion_pool_requests_total", "Calls to the ingresses of pools.", ["verb", "result"], registry=r
        )
        self._compiles = Histogram("decurion_compile_seconds", "Time of one compilation.", registry=r)
        self.depth = Gauge("decurion_queue_depth", "Keys that are due.", registry=r)
        self.runs = Gauge("decurion_runs", "Runs by phase.", ["phase"], registry=r)
        self.watch_age = Gauge(
            "decurion_watch_event_age_seconds",
            "Age of the watch's last event; grows while all is quiet.",
            registry=r,
        )
        self.pool_restarts = Counter(
            "decurion_local_pool_restarts_total", "Ends of processes of Local pools.", registry=r
        )
        self.watch_restarts = Counter("decurion_watch_restarts_total", "Restarts of the watch.", registry=r)
        self.lag = Gauge("decurion_loop_lag_seconds", "How late the event loop last ran a timer.", registry=r)
        self.leader_epoch = Gauge("decurion_leader_epoch", "Leader epoch of this process.", registry=r)

    def reconciled(self, key: Key, seconds: float, error: str | None) -> None:
        self.tally.reconciles[key] += 1
        self._reconciles.labels(key.kind).observe(seconds)
        if error:
            self._errors.labels(key.kind, error).inc()

    def api(self, verb: str, kind: str, code: int, *, sent: int, received: int) -> None:
        """One call to the API server has ended; code 0 is no answer. Sizes are in bytes."""
        self._api.labels(verb, kind, str(code)).inc()
        self._bytes.labels(kind, "sent").inc(sent)
        self._bytes.labels(kind, "received").inc(received)

    def wrote(self, key: Key) -> None:
        self.tally.writes[key] += 1

    def pool(self, verb: str, result: str) -> None:
        self._pool.labels(verb, result).inc()

    def compiled(self, seconds: float) -> None:
        self._compiles.observe(seconds)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
