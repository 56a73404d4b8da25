"""What the service counts about itself, in Prometheus' words. No ids in labels: they would never end."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One registry per app, so that several apps in one process do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.requests = self._counter(
            "coheat_http_requests", "Requests answered.", "method", "route", "status"
        )
        self.seconds = Histogram(
            "coheat_http_request_duration_seconds",
            "Time from the request's head to the end of the answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_progress = self._gauge("coheat_http_requests_in_progress", "Requests in progress.")
        self.connections = self._gauge("coheat_connections", "Connections that are open.")
        self.connections_ended = self._counter(
            "coheat_connections_ended", "Connections that we ended, by the reason.", "reason"
        )
        self.log_dropped = self._gauge("coheat_log_lines_dropped", "Lines of the log that nobody took.")
        self.refused = self._counter("coheat_http_requests_refused", "Requests not let in.", "reason")
        self.lists = self._counter("coheat_lists", "Lists answered, by side.", "side")
        self.writes = self._counter("coheat_writes", "Changes stored.", "kind")
        self.failed_writes = self._counter("coheat_writes_failed", "Changes not stored.", "kind")
        self.write_seconds = Histogram(
            "coheat_store_write_duration_seconds",
            "Time until a change was on the disk.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.reloads = self._counter("coheat_model_reloads", "Attempts to load a new model.", "result")
        self.loaded_at = self._gauge(
            "coheat_model_loaded_timestamp_seconds", "When the model that answers was loaded."
        )
        self.bundles = self._gauge("coheat_bundles", "Bundles that can be recommended.")
        self.behind = self._gauge(
            "coheat_changes_behind", "Changes of other replicas that are stored and not followed yet."
        )
        self.ready = self._gauge("coheat_ready", "1 when warmed up and taking requests.")

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        key = method, route, status
        if key not in self._children:  # to look them up by their labels takes longer than to count
            self._children[key] = (
                self.requests.labels(method, route, str(status)),
                self.seconds.labels(route),
            )
        requests, durations = self._children[key]
        requests.inc()
        durations.observe(seconds)

    def model_loaded(self, n_bundles: int) -> None:
        self.loaded_at.set(time.time())
        self.bundles.set(n_bundles)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)
