"""Clients of other languages against one real node: kcat, Java, Go and Node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.node_process import NodeProcess
from harness.programs import run

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_and_reads(node: NodeProcess, topic: str, codec: str) -> None:
    lines = "".join(f"k{n}:v{n}\n" for n in range(200))
    run("kcat", "-b", node.bootstrap, "-P", "-t", topic, "-K:", "-z", codec, "-H", "h=1", text_in=lines)
    read = run("kcat", "-b", node.bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%o %k:%s %h\n")
    assert read == "".join(f"{n} k{n}:v{n} h=1\n" for n in range(200))


def test_kcat_lists_the_broker_and_the_topic(node: NodeProcess, topic: str) -> None:
    run("kcat", "-b", node.bootstrap, "-P", "-t", topic, text_in="one\n")
    listed = json.loads(run("kcat", "-b", node.bootstrap, "-L", "-J"))
    assert [broker["id"] for broker in listed["brokers"]] == [1]
    assert topic in {found["topic"] for found in listed["topics"]}


def test_the_java_client_with_idempotence(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    seen = dict(line.split("=", 1) for line in java("JavaClient", node.bootstrap, topic, "500", "1").splitlines())
    assert seen == {
        "brokers": "[1]",
        "controller": "1",
        "partitions": "1",
        "retention": "7200000",
        "produced": "2500",
        "consumed": "2500",
        "deleted": "true",
    }


def test_the_go_client(node: NodeProcess, build: Path, topic: str) -> None:
    seen = json.loads(run(str(build / "go-client"), node.bootstrap, topic, "200"))
    assert (seen["brokers"], seen["controller"], seen["end"]) == ([1], 1, 1000)
    assert seen["seen"] == [f"{codec}-{n}" for codec in range(5) for n in range(200)]


def test_the_node_client(node: NodeProcess, build: Path, topic: str) -> None:
    seen = json.loads(run("node", str(build / "node" / "client.js"), node.bootstrap, topic, "200"))
    assert ([*seen["brokers"]], seen["controller"], seen["high"]) == ([1], 1, 200)
    assert seen["seen"] == [[f"k{n}", f"v{n}", str(n)] for n in range(200)]
