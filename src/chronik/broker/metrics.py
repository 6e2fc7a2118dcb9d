"""Counters of the Kafka edge, kept as plain integers and read by the metrics collector of the HTTP side.

What lives here: the counters and how a duration finds its bucket. What does not: any exposition format.
"""

from __future__ import annotations

LATENCY_BUCKETS = 26
"""Bucket i counts requests of less than 2**i microseconds; the last one takes the rest (over 33 s)."""


class ApiMetrics:
    """What happened to the requests of one API."""

    __slots__ = ("buckets", "count", "outcomes", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.outcomes: dict[int, int] = {}
        self.buckets = [0] * (LATENCY_BUCKETS + 1)

    def observe(self, seconds: float, error_code: int) -> None:
        """Count one finished request with its outcome, a Kafka error code (0 is success)."""
        self.count += 1
        self.seconds += seconds
        outcomes = self.outcomes
        outcomes[error_code] = outcomes.get(error_code, 0) + 1
        bucket = int(seconds * 1e6).bit_length()
        self.buckets[bucket if bucket < LATENCY_BUCKETS else LATENCY_BUCKETS] += 1


class BrokerMetrics:
    """All counters of one Kafka listener. Fields only ever grow, except `connections`."""

    __slots__ = (
        "apis",
        "bytes_in",
        "bytes_out",
        "connections",
        "connections_accepted",
        "connections_expired",
        "connections_refused",
        "fetch_bytes",
        "handler_failures",
        "produce_bytes",
        "requests_malformed",
        "requests_unsupported",
    )

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce_bytes = 0
        self.fetch_bytes = 0
        self.connections = 0
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_expired = 0
        self.requests_malformed = 0
        self.requests_unsupported = 0
        self.handler_failures = 0

    def api(self, api_key: int) -> ApiMetrics:
        """The counters of one API, made on first use."""
        counters = self.apis.get(api_key)
        if counters is None:
            counters = self.apis[api_key] = ApiMetrics()
        return counters
