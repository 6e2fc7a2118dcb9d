"""The `chronik` command against a real node: topics, produce, consume, and what it says when something is wrong."""

from __future__ import annotations

import json

import pytest

from harness.command import chronik, chronik_json
from harness.node_process import NodeProcess


@pytest.fixture
def at(node: NodeProcess) -> tuple[str, str]:
    return ("--bootstrap", node.bootstrap)


def test_topics_are_created_listed_described_altered_and_deleted(at: tuple[str, str], topic: str) -> None:
    chronik("topic", "create", topic, "--partitions", "3", "--config", "retention.ms=3600000", *at)
    assert {"name": topic, "partitions": 3, "replication_factor": 1} in chronik_json("topic", "list", *at)
    assert topic in chronik("topic", "list", *at)
    described = chronik_json("topic", "describe", topic, *at)
    assert described["configs"] == {"retention.ms": "3600000"}
    assert [partition["leader"] for partition in described["partitions"]] == [1, 1, 1]
    chronik("topic", "alter", topic, "--set", "retention.ms=7200000", "--partitions", "4", *at)
    described = chronik_json("topic", "describe", topic, *at)
    assert described["configs"] == {"retention.ms": "7200000"} and len(described["partitions"]) == 4
    chronik("topic", "alter", topic, "--unset", "retention.ms", *at)
    assert chronik_json("topic", "describe", topic, *at)["configs"] == {}
    chronik("topic", "delete", topic, *at)
    assert topic not in chronik("topic", "list", *at).split()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_are_produced_and_consumed(at: tuple[str, str], topic: str, codec: str) -> None:
    lines = "".join(f"k{number}:value {number}\n" for number in range(50))
    chronik("topic", "create", topic, "--partitions", "1", *at)
    chronik("produce", topic, "-K", ":", "--compression", codec, "--header", "h=1", *at, text_in=lines)
    read = chronik("consume", topic, "--from", "earliest", "--until-end", "--keys", *at)
    assert read == lines.replace(":", "\t")
    first = json.loads(chronik("consume", topic, "--from", "earliest", "--max", "1", "--json", *at))
    assert (first["key"], first["value"], first["offset"]) == ("k0", "value 0", 0)
    assert first["headers"] == [{"name": "h", "value": "1"}]
    assert chronik("consume", topic, "--from", "48", "--max", "2", *at) == "value 48\nvalue 49\n"
    assert chronik("consume", topic, "--from", "latest", "--timeout", "0.5", *at) == ""


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("topic", "describe", "no-such-topic"), "no-such-topic"),
        (("topic", "create", "bad/name"), "bad/name"),
        (("topic", "create", "x", "--config", "retention.ms=soon"), "retention.ms"),
        (("topic", "create", "x", "--config", "retention"), "NAME=VALUE"),
        (("topic", "create", "x", "--replication-factor", "3"), "replication factor"),
        (("topic", "alter", "x"), "nothing to change"),
        (("topic", "delete", "no-such-topic"), "no-such-topic"),
        (("consume", "x-no-topic", "--from", "yesterday"), ""),
        (("consume", "t", "--max=-1"), "use 0 or more"),
        (("consume", "t", "--timeout=-0.5"), "use 0 or more"),
        (("produce", "x", "--acks", "2"), "all, 1 or 0"),
        (("produce", "x", "--compression", "rar"), "gzip"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    at: tuple[str, str], arguments: tuple[str, ...], advice: str
) -> None:
    complaint = chronik(*arguments, *at, code=1, text_in="")
    assert len(complaint.strip().splitlines()) == 1
    assert complaint.startswith("chronik: ") and advice in complaint


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    complaint = chronik("topic", "list", "--bootstrap", "127.0.0.1:1", code=1)
    assert "127.0.0.1:1" in complaint and len(complaint.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [("--help",), ("start", "--help"), ("topic", "create", "--help"), ("cluster", "--help")]
)
def test_help_is_there(arguments: tuple[str, ...]) -> None:
    assert "Usage: chronik" in chronik(*arguments)
