"""Health and metrics over HTTP, on a real node."""

from __future__ import annotations

from pathlib import Path

import httpx

from harness.clients.kafka_python import KafkaPython
from harness.clients.message import Message
from harness.node_process import NodeProcess
from harness.waiting import eventually


def _get(node: NodeProcess, path: str) -> httpx.Response:
    try:
        return httpx.get(f"http://127.0.0.1:{node.http_port}{path}", timeout=5)
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error


def test_a_healthy_node_says_that_it_is_live_and_ready(node: NodeProcess) -> None:
    assert eventually(lambda: _get(node, "/health/live"), "HTTP is up").json() == {"status": "live"}
    ready = eventually(lambda: _get(node, "/health/ready"), "HTTP is up")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "reasons": []})


def test_metrics_count_requests_by_api_and_outcome(node: NodeProcess, topic: str) -> None:
    client = KafkaPython(node.bootstrap)
    client.create_topic(topic, 1, 1, {})
    client.produce(topic, 0, [Message(b"x" * 100) for _ in range(10)], "none")
    page = eventually(lambda: _get(node, "/metrics"), "HTTP is up").text
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    assert float(samples['chronik_requests_total{api="produce",outcome="none"}']) >= 1
    assert float(samples['chronik_request_seconds_count{api="produce"}']) >= 1
    assert float(samples["chronik_bytes_in_total"]) > 1000
    assert float(samples["chronik_log_bytes"]) > 0
    assert float(samples["chronik_raft_is_leader"]) == 1
    assert float(samples["chronik_topics"]) >= 1
    assert float(samples["chronik_partitions_leaders"]) >= 1
    assert float(samples["chronik_controller_reassignments_finished_total"]) == 0


def test_the_cluster_page_tells_what_the_node_knows(node: NodeProcess) -> None:
    page = eventually(lambda: _get(node, "/v1/cluster"), "HTTP is up").json()
    assert page["controller"] == 1
    assert [broker["status"] for broker in page["brokers"]] == ["online"]


def test_a_node_without_a_quorum_is_live_but_not_ready_and_says_why(tmp_path: Path) -> None:
    lonely = NodeProcess(tmp_path, http=True)
    lonely._voters = f"1@127.0.0.1:{lonely.peer_port},2@127.0.0.1:1,3@127.0.0.1:2"
    try:
        lonely.start()
        assert eventually(lambda: _get(lonely, "/health/live"), "HTTP is up").status_code == 200
        ready = _get(lonely, "/health/ready")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ["no quorum: 1 of 3 voters reachable"]
    finally:
        lonely.close()
