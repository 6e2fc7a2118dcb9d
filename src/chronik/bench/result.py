"""What a run ends with: numbers for scripts, and the rows of a table for people."""

from __future__ import annotations

from typing import Any

import msgspec

from chronik.bench.histogram import Histogram
from chronik.bench.machine import Machine, this_machine
from chronik.bench.tally import Tally

BUSY_CLIENT = 0.9
"""A load generator that used this share of a core may itself be the limit."""

_MB = 1e6


class BrokerUse(msgspec.Struct, frozen=True):
    """What the local broker processes used during the measurement, all together."""

    processes: int
    cpu_s: float
    peak_memory_mb: float


class Result(msgspec.Struct, kw_only=True):
    """One measurement. Latencies are of what `latency_of` names."""

    name: str
    messages: int = 0
    duration_s: float = 0.0
    messages_per_s: float = 0.0
    mb_per_s: float = 0.0
    latency_of: str = ""
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0
    max_ms: float = 0.0
    errors: int = 0
    unsent: int = 0
    error_kinds: dict[str, int] = msgspec.field(default_factory=dict)
    client_cores: float = 0.0
    """Cores that the busiest kind of load generator used on average, per process."""

    brokers: BrokerUse | None = None
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    """What only this kind of measurement has, by name and unit."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    machine: Machine = msgspec.field(default_factory=this_machine)


def result_of(name: str, tally: Tally, *, latency_of: str, processes: int = 1) -> Result:
    """The result of workers that ran side by side, from their added tallies."""
    seconds = tally.duration_s or 1e-9
    result = Result(
        name=name,
        messages=tally.messages,
        duration_s=round(tally.duration_s, 3),
        messages_per_s=round(tally.messages / seconds, 1),
        mb_per_s=round(tally.message_bytes / seconds / _MB, 3),
        errors=tally.errors,
        unsent=tally.unsent,
        error_kinds=tally.error_kinds,
        client_cores=round(tally.cpu_s / seconds / max(processes, 1), 3),
    )
    set_latency(result, tally.latency, latency_of)
    return result


def set_latency(result: Result, latency: Histogram, latency_of: str) -> None:
    result.latency_of = latency_of
    result.p50_ms = round(latency.percentile_ms(50), 4)
    result.p90_ms = round(latency.percentile_ms(90), 4)
    result.p99_ms = round(latency.percentile_ms(99), 4)
    result.p999_ms = round(latency.percentile_ms(99.9), 4)
    result.max_ms = round(latency.max_ms, 4)


def rows_of(result: Result) -> list[tuple[str, str]]:
    """The table: a name and a value per line; lines without meaning for this result are left out."""
    rows: list[tuple[str, str]] = []
    if result.mb_per_s:
        rows.append(("messages/s", f"{result.messages_per_s:,.0f}"))
        rows.append(("MB/s", f"{result.mb_per_s:,.2f}"))
    rows += [(name, f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}") for name, value in result.figures.items()]
    if result.max_ms:
        for label, value in (
            ("p50", result.p50_ms),
            ("p90", result.p90_ms),
            ("p99", result.p99_ms),
            ("p99.9", result.p999_ms),
            ("max", result.max_ms),
        ):
            rows.append((f"{result.latency_of} {label}", f"{value:,.3f} ms"))
    rows.append(("errors", f"{result.errors:,}" + _kinds(result)))
    if result.unsent:
        rows.append(("due but never sent", f"{result.unsent:,} messages: the rate is more than the cluster takes"))
    if result.brokers is not None:
        used = result.brokers
        rows.append(("broker CPU", f"{used.cpu_s:.2f} s in {used.processes} process(es)"))
        rows.append(("broker peak memory", f"{used.peak_memory_mb:,.0f} MB"))
    if result.client_cores:
        note = "; the client may be the limit, use more processes" if result.client_cores > BUSY_CLIENT else ""
        rows.append(("load generator", f"{result.client_cores:.2f} cores per process{note}"))
    rows.append(("machine", str(result.machine)))
    return rows


def _kinds(result: Result) -> str:
    if not result.error_kinds:
        return ""
    return " (" + ", ".join(f"{kind}: {count:,}" for kind, count in result.error_kinds.items()) + ")"
