"""`chronik bench` against a real node: every kind of load ends with numbers and without errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

from harness.node_process import NodeProcess

SHORT = ("--warmup", "0.1", "--duration", "0.5")
DEADLINE_S = 60.0


def bench(node: NodeProcess, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "chronik", "bench", *arguments, "--bootstrap", node.bootstrap, "--json"]
    ended = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    document: dict[str, Any] = msgspec.json.decode(ended.stdout)
    assert document["errors"] == 0
    return document


def test_produce_counts_acknowledged_messages_and_watches_the_broker(node: NodeProcess) -> None:
    result = bench(node, "produce", *SHORT, "--producers", "2", "--partitions", "2", "--compression", "lz4")
    assert result["messages_per_s"] > 0
    assert result["mb_per_s"] > 0
    assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert result["brokers"]["processes"] == 1


def test_produce_at_a_rate_sends_that_many_messages(node: NodeProcess) -> None:
    result = bench(node, "produce", *SHORT, "--rate", "400", "--message-size", "100")
    assert 100 < result["messages_per_s"] < 500


def test_consume_reads_what_was_filled_in_more_than_once(node: NodeProcess) -> None:
    result = bench(node, "consume", *SHORT, "--fill-mb", "1")
    assert result["messages"] > 1000


def test_latency_is_measured_from_end_to_end(node: NodeProcess) -> None:
    result = bench(node, "latency", *SHORT, "--rate", "200")
    assert result["latency_of"] == "end to end"
    assert 0 < result["p50_ms"] < 10_000


def test_topics_are_created_three_ways_and_removed(node: NodeProcess) -> None:
    result = bench(node, "topics", "--count", "12", "--threads", "4", "--threads", "2", "--batch", "6")
    assert [way["figures"]["listed afterwards"] for way in result["ways"]] == [12, 12, 12]


def test_transactions_are_committed(node: NodeProcess) -> None:
    assert bench(node, "transactions", *SHORT)["figures"]["transactions/s"] > 0
