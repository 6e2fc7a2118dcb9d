"""Kafka's own ProducerPerformance and ConsumerPerformance: how they are called, and what they print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

LIBS = Path(".build/kafka/libs")
TIMEOUT_S = 300.0
_MIB = 1024 * 1024
_MB = 1_000_000

_SUMMARY = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th"
)


class ToolFailed(Exception):
    """A foreign client did not do what it was asked; the text is what it said."""


def available() -> bool:
    return LIBS.is_dir() and any(LIBS.glob("kafka-tools-*.jar"))


def version() -> str:
    return next(LIBS.glob("kafka-clients-*.jar")).stem.removeprefix("kafka-clients-")


def produce(bootstrap: str, topic: str, messages: int, size: int, properties: dict[str, str]) -> dict[str, float]:
    settings = [f"{name}={value}" for name, value in {"bootstrap.servers": bootstrap, **properties}.items()]
    arguments = ["--topic", topic, "--num-records", str(messages), "--record-size", str(size), "--throughput", "-1"]
    said = _run("org.apache.kafka.tools.ProducerPerformance", *arguments, "--producer-props", *settings)
    return parse_producer(said)


def consume(bootstrap: str, topic: str, messages: int) -> dict[str, float]:
    arguments = ["--topic", topic, "--messages", str(messages), "--bootstrap-server", bootstrap, "--timeout", "30000"]
    return parse_consumer(_run("org.apache.kafka.tools.ConsumerPerformance", *arguments), messages)


def parse_producer(said: str) -> dict[str, float]:
    found = [match for line in said.splitlines() if (match := _SUMMARY.match(line))]
    if not found:
        raise ToolFailed(f"ProducerPerformance printed no summary: {said[-1000:]}")
    if "Exception" in said:  # the tool counts a message that failed as sent
        raise ToolFailed(f"ProducerPerformance had errors: {said[-1000:]}")
    sent, rate, mib, _, _, p50, _, p99, p999 = (float(number) for number in found[-1].groups())
    return {
        "messages": sent,
        "messages_per_s": rate,
        "mb_per_s": mib * _MIB / _MB,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
    }


def parse_consumer(said: str, expected: int) -> dict[str, float]:
    lines = [line.split(", ") for line in said.splitlines() if line.count(", ") == 9]
    if len(lines) < 2:
        raise ToolFailed(f"ConsumerPerformance printed no result: {said[-1000:]}")
    values = dict(zip(lines[0], lines[-1], strict=True))
    read = float(values["data.consumed.in.nMsg"])
    if read < expected:
        raise ToolFailed(f"ConsumerPerformance read {read:.0f} of {expected} messages")
    # The rate without the time that the group took to form, which is a row of its own.
    return {
        "messages": read,
        "messages_per_s": float(values["fetch.nMsg.sec"]),
        "mb_per_s": float(values["fetch.MB.sec"]) * _MIB / _MB,
    }


def _run(main_class: str, *arguments: str) -> str:
    command = ["java", "-Xmx512m", "-cp", f"{LIBS}/*", main_class, *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{main_class} did not end within {TIMEOUT_S:g} s") from error
    if ended.returncode:
        raise ToolFailed(f"{main_class} ended with code {ended.returncode}: {(ended.stderr or ended.stdout)[-1000:]}")
    return ended.stdout if main_class.endswith("ConsumerPerformance") else ended.stdout + ended.stderr
