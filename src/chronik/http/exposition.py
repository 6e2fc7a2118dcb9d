"""Metrics in Prometheus' format. Components keep plain integers; they are read here only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from chronik.broker.metrics import LATENCY_BUCKETS, BrokerMetrics
from chronik.health import Reading
from chronik.protocol.api import ApiKey
from chronik.protocol.errors import ErrorCode

Provider = Callable[[], Iterable[Reading]]


class NodeCollector(Collector):
    """Reads the counters of the Kafka edge and whatever the other components report."""

    def __init__(self, broker: BrokerMetrics, providers: Iterable[Provider]) -> None:
        self._broker = broker
        self._providers = list(providers)

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        families: dict[str, Metric] = {}
        for provider in self._providers:
            for reading in provider():
                family = families.get(reading.name)
                if family is None:
                    family = families[reading.name] = _family(reading)
                family.add_sample(reading.name, reading.labels, reading.value)
        yield from families.values()

    def _requests(self) -> Iterator[Metric]:
        outcomes = CounterMetricFamily(
            "chronik_requests", "Kafka requests by API and outcome", labels=["api", "outcome"]
        )
        latency = HistogramMetricFamily("chronik_request_seconds", "Time from request to response", labels=["api"])
        for key, api in self._broker.apis.items():
            name = ApiKey(key).name.lower()
            for code, count in api.outcomes.items():
                outcomes.add_metric([name, ErrorCode(code).name.lower()], count)
            buckets: list[tuple[str, float]] = []
            running = 0
            for bit in range(LATENCY_BUCKETS):
                running += api.buckets[bit]
                buckets.append((str(2**bit / 1e6), running))
            buckets.append(("+Inf", api.count))
            latency.add_metric([name], buckets, api.seconds)
        yield outcomes
        yield latency
        for field in self._broker.__slots__:
            if field == "apis":
                continue
            value = getattr(self._broker, field)
            label = field.replace("_", " ")
            if field == "connections":
                yield GaugeMetricFamily("chronik_connections", "Open client connections", value)
            else:
                yield CounterMetricFamily(f"chronik_{field}", f"Total of {label}", value)


def _family(reading: Reading) -> Metric:
    if reading.name.endswith("_total"):
        return Metric(reading.name.removesuffix("_total"), reading.help, "counter")
    return Metric(reading.name, reading.help, "gauge")


class Exposition:
    """Renders everything as one page."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    def render(self) -> bytes:
        return generate_latest(self._registry)
