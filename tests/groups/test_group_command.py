"""`chronik group`, and what the metrics say about groups, on a real node."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from chronik.client.admin.groups import commit_offsets
from chronik.client.cluster import Cluster
from chronik.client.metadata import TopicPartition
from groups.conftest import QUICK, StartMember
from groups.reading import committed, make_topic, wait_committed, write
from harness.node_process import NodeProcess

TIMESTAMP_FAR_BACK = "2020-01-01T00:00"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("watched"), settings=QUICK, http=True).start()
    yield running
    running.close()


@pytest.fixture
def group(watched: NodeProcess, name: str) -> str:
    """A group without members that has read 4 of 10 records in each of two partitions of a topic of its name."""
    make_topic(watched.bootstrap, name, 2)
    write(watched.bootstrap, name, 2, 10)
    with Cluster(watched.bootstrap) as cluster:
        commit_offsets(cluster, name, {TopicPartition(name, index): 4 for index in range(2)})
    return name


def run(node: NodeProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chronik", "group", *arguments, "--bootstrap", node.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_group_is_listed_described_with_its_lag_and_deleted(watched: NodeProcess, group: str) -> None:
    assert group in run(watched, "list").stdout
    described = json.loads(run(watched, "describe", group, "--json").stdout)
    assert described["state"] == "Empty"
    assert described["lag"] == 12
    assert [(o["committed"], o["end"], o["lag"]) for o in described["offsets"]] == [(4, 10, 6)] * 2
    assert "lag 12" in run(watched, "describe", group).stdout
    assert run(watched, "delete", group).stdout == f"deleted group {group}\n"
    missing = run(watched, "delete", group)
    assert missing.returncode == 1
    assert "there is no such group" in missing.stderr


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "7"), 7),
        (("--to-offset", "99"), 10),
        (("--to-time", TIMESTAMP_FAR_BACK), 0),
        (("--shift", "3"), 7),
        (("--shift", "-9"), 0),
    ],
)
def test_offsets_are_moved_only_when_asked_to(
    watched: NodeProcess, group: str, where: tuple[str, ...], expected: int
) -> None:
    shown = json.loads(run(watched, "reset-offsets", group, *where, "--json").stdout)
    assert not shown["executed"]
    assert {o["to"] for o in shown["offsets"]} == {expected}
    assert committed(watched.bootstrap, group) == {0: 4, 1: 4}
    done = run(watched, "reset-offsets", group, "--topic", f"{group}:1", *where, "--execute")
    assert done.returncode == 0, done.stderr
    assert committed(watched.bootstrap, group) == {0: 4, 1: expected}


def test_offsets_of_a_group_with_members_are_not_moved(
    watched: NodeProcess, group: str, start_member: StartMember
) -> None:
    start_member("confluent-kafka", watched.bootstrap, group, group).wait_assigned(2)
    refused = run(watched, "reset-offsets", group, "--to-earliest", "--execute")
    assert refused.returncode == 1
    assert "stop them" in refused.stderr
    assert "it has members" in run(watched, "delete", group).stderr


@pytest.mark.parametrize("arguments", [(), ("--to-earliest", "--to-latest"), ("--to-time", "yesterday")])
def test_a_wish_that_is_not_clear_is_refused_with_a_hint(
    watched: NodeProcess, group: str, arguments: tuple[str, ...]
) -> None:
    refused = run(watched, "reset-offsets", group, *arguments)
    assert refused.returncode == 1
    assert "--to-" in refused.stderr


def test_the_metrics_show_offsets_and_lag(watched: NodeProcess, group: str) -> None:
    wait_committed(watched.bootstrap, group, {0: 4, 1: 4})
    with urllib.request.urlopen(f"http://127.0.0.1:{watched.http_port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    for name, value in (("chronik_group_offset", 4.0), ("chronik_group_lag", 6.0)):
        for partition in (0, 1):
            assert f'{name}{{group="{group}",partition="{partition}",topic="{group}"}} {value}' in lines
    assert any(line.startswith('chronik_groups{state="Empty",type="classic"}') for line in lines)
