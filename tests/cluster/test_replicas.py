"""What replicas promise when some are gone, late, strange or full."""

from __future__ import annotations

import itertools
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from chronik.protocol.errors import ErrorCode
from harness.cluster_view import ask, wait_until_agreed
from harness.faults import Faults
from harness.node_process import NodeProcess, need_private_mounts, three_nodes
from harness.one_node import OneNode
from harness.waiting import eventually
from harness.workload import Workload, differing_replicas, replica_bytes

ALL = [1, 2, 3]
SMALL_DISK_BYTES = 24 * 1024 * 1024
_numbers = itertools.count(1)


def new_topic(node: NodeProcess, replicas: list[int], **configs: str) -> str:
    """A topic of one partition with these replicas, all in sync, the first one leading."""
    name = f"replicated-{next(_numbers)}"
    with OneNode(node) as at:
        assert at.create(name, replicas=replicas, **configs).error_code == 0
        eventually(lambda: at.partition(name).leader == replicas[0], "the first replica leads")
        eventually(lambda: at.partition(name).isr == tuple(sorted(replicas)), "all are in sync")
    return name


def roles(nodes: list[NodeProcess]) -> tuple[NodeProcess, NodeProcess, NodeProcess]:
    """Two nodes for replicas, and the controller, which keeps the majority with either."""
    controller = ask(nodes[0]).controller
    first, second = (node for node in nodes if node.node_id != controller)
    return first, second, nodes[controller - 1]


def test_the_last_replica_refuses_writes_goes_on_reading_and_is_not_replaced_by_a_stale_one(
    trio: list[NodeProcess],
) -> None:
    leader, follower, witness = roles(trio)
    ids = [leader.node_id, follower.node_id]
    safe = new_topic(witness, ids, min_insync_replicas="2")
    unclean = new_topic(witness, ids, min_insync_replicas="1")
    with OneNode(leader) as at, OneNode(witness) as seen:
        for topic in (safe, unclean):
            assert at.produce(topic, 0, b"on both").error is ErrorCode.NONE
        follower.kill()
        eventually(lambda: at.partition(safe).isr == (leader.node_id,), "the dead one leaves the ISR")
        assert at.produce(safe, 0, b"refused").error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert at.produce(safe, 0, b"acks=1", acks=1).error is ErrorCode.NONE
        assert at.produce(unclean, 0, b"alone").error is ErrorCode.NONE
        assert at.fetch(safe, 0).values[0] == b"on both"

        leader.kill()
        follower.start()
        eventually(lambda: follower.node_id in {b[0] for b in ask(witness).brokers}, "the stale replica is back", 30.0)
        eventually(lambda: seen.partition(safe).leader == -1, "the partition has no leader")
        with OneNode(follower) as stale:
            assert stale.produce(safe, 0, b"stale", acks=1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert seen.partition(unclean).leader == -1
        allow_unclean_election(witness, unclean)
        eventually(lambda: seen.partition(unclean).leader == follower.node_id, "asked for, the stale one leads", 5.0)
        assert seen.partition(safe).leader == -1

    leader.start()
    with OneNode(leader) as at, OneNode(follower) as asked:
        eventually(lambda: at.partition(safe).leader == leader.node_id, "the one with all records leads again", 30.0)
        eventually(lambda: at.partition(safe).isr == tuple(sorted(ids)), "and is followed", 30.0)
        assert at.fetch(safe, 0).values == [b"on both", b"acks=1"]
        assert asked.fetch(unclean, 0).values == [b"on both"], "the price of an unclean election"
        eventually(lambda: asked.partition(unclean).isr == tuple(sorted(ids)), "the old leader follows the new", 30.0)
    for topic in (safe, unclean):
        eventually(lambda t=topic: not differing_replicas([leader, follower], t, 1), "both have the same")


def allow_unclean_election(node: NodeProcess, topic: str) -> None:
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def test_reads_go_on_at_the_last_node_of_three(trio: list[NodeProcess]) -> None:
    topic = new_topic(trio[0], ALL, min_insync_replicas="2")
    with OneNode(trio[0]) as last:
        assert last.produce(topic, 0, b"kept").error is ErrorCode.NONE
        trio[1].kill()
        trio[2].kill()
        try:
            eventually(lambda: last.produce(topic, 0, b"no", timeout_ms=500).error.retriable, "writes are refused")
            eventually(
                lambda: last.produce(topic, 0, b"no", acks=1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "without a controller the lease is over",
            )
            assert last.fetch(topic, 0).values == [b"kept"]
        finally:
            trio[1].start(wait=False)
            trio[2].start(wait=False)
        wait_until_agreed(trio, brokers=ALL)


def test_writes_resume_as_soon_as_a_late_follower_is_in_sync(trio: list[NodeProcess]) -> None:
    leader, follower, witness = roles(trio)
    topic = new_topic(witness, [leader.node_id, follower.node_id], min_insync_replicas="2")
    with OneNode(leader) as at:
        follower.kill()
        eventually(lambda: at.produce(topic, 0, b"no").error is ErrorCode.NOT_ENOUGH_REPLICAS, "one is not enough")
        for number in range(50):
            assert at.produce(topic, 0, b"behind %d" % number, acks=1).error is ErrorCode.NONE
        follower.start()
        eventually(lambda: len(at.partition(topic).isr) == 2, "the late one is in sync")
        assert at.produce(topic, 0, b"again").error is ErrorCode.NONE
        assert at.fetch(topic, 0).values[-1] == b"again"


def test_after_all_were_killed_two_of_three_lead_what_the_third_led(trio: list[NodeProcess]) -> None:
    topics = [new_topic(trio[0], [first, *(node for node in ALL if node != first)]) for first in ALL]
    for topic, node in zip(topics, trio, strict=True):
        with OneNode(node) as at:
            assert at.produce(topic, 0, b"kept").error is ErrorCode.NONE
    missing, *back = trio
    for node in trio:
        node.kill()
    try:
        for node in back:
            node.start(wait=False)
        for node in back:
            node.wait_ready()
        with OneNode(back[0]) as one, OneNode(back[1]) as other:
            by_id = {back[0].node_id: one, back[1].node_id: other}
            for topic in topics:
                eventually(lambda topic=topic: one.partition(topic).leader in by_id, "one of the two leads")
                leader = by_id[one.partition(topic).leader]
                eventually(lambda topic=topic, leader=leader: leader.fetch(topic, 0).values == [b"kept"], "it is there")
    finally:
        missing.start(wait=False)
    wait_until_agreed(trio, brokers=ALL)


def test_the_high_watermark_never_goes_backwards_through_failovers(trio: list[NodeProcess]) -> None:
    topic = new_topic(trio[0], ALL, min_insync_replicas="2")
    workload = Workload(trio, topic, 1).start()
    workload.wait_for_progress()
    seen: list[tuple[int, int]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for node in trio:
                try:
                    with OneNode(node, timeout_s=2.0) as at:
                        answer = at.fetch(topic, 0, workload.count(), max_wait_ms=5)
                except OSError:
                    continue  # this one is the node that is down
                if answer.error is ErrorCode.NONE:
                    seen.append((answer.high_watermark, node.node_id))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    faults = Faults(trio, workload)
    faults.kill_leader()
    faults.kill_leader()
    workload.wait_for_progress()
    stop.set()
    watcher.join(20)
    workload.stop()
    backwards = [(before, after) for before, after in itertools.pairwise(seen) if after[0] < before[0]]
    assert len({node for _, node in seen}) > 1, "more than one node has led"
    assert backwards == []
    assert workload.verify() == []


def test_the_end_offset_is_right_immediately_after_an_acknowledgement(trio: list[NodeProcess]) -> None:
    topic = new_topic(trio[0], ALL, min_insync_replicas="2")
    with OneNode(trio[0]) as at:
        for number in range(100):
            produced = at.produce(topic, 0, b"x")
            assert (produced.error, produced.offset) == (ErrorCode.NONE, number)
            assert at.fetch(topic, 0, number).high_watermark == number + 1


def test_deleted_records_stay_deleted_when_another_node_leads(trio: list[NodeProcess]) -> None:
    leader, follower, witness = roles(trio)
    topic = new_topic(witness, [leader.node_id, follower.node_id, witness.node_id], min_insync_replicas="2")
    with OneNode(leader) as at:
        for number in range(10):
            assert at.produce(topic, 0, b"%d" % number).error is ErrorCode.NONE
        assert at.delete(topic, 0, 7) == (ErrorCode.NONE, 7)
        follower.pause()
        try:
            assert at.delete(topic, 0, 8, timeout_ms=300) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        finally:
            follower.resume()
        assert at.delete(topic, 0, 8) == (ErrorCode.NONE, 8)
    leader.kill()
    with OneNode(witness) as seen:
        eventually(lambda: seen.partition(topic).leader not in (leader.node_id, -1), "another leads")
        successor = trio[seen.partition(topic).leader - 1]
    with OneNode(successor) as at:
        eventually(lambda: at.fetch(topic, 0, 8).values == [b"8", b"9"], "it serves what is left")
        assert at.fetch(topic, 0, 7).error is ErrorCode.OFFSET_OUT_OF_RANGE
    leader.start(wait=False)
    wait_until_agreed(trio, brokers=ALL)


def test_data_that_metadata_does_not_know_is_set_aside_and_not_deleted(trio: list[NodeProcess]) -> None:
    topic = new_topic(trio[0], ALL)
    with OneNode(trio[0]) as at:
        assert at.produce(topic, 0, b"known").error is ErrorCode.NONE
    node = next(node for node in trio if node.node_id != ask(trio[0]).controller)
    eventually(lambda: replica_bytes(node, topic, 0), "the replica is on its disk")
    assert node.stop() == 0
    known = next(node.data_dir.rglob(f"{topic}-0"))
    strange = known.with_name("strange-0")
    shutil.copytree(known, strange)
    for file in strange.glob("*metadata*"):
        text = file.read_text()
        old_id = next(line for line in text.splitlines() if line.startswith("topic_id")).split(":", 1)[1].strip()
        file.write_text(text.replace(old_id, secrets.token_urlsafe(16)))
    contents = next(strange.glob("*.log")).read_bytes()
    assert contents
    node.start()
    wait_until_agreed(trio, brokers=ALL)
    eventually(lambda: "setting data aside" in node.log_since_start(), "it is reported")
    eventually(lambda: not strange.exists(), "it is out of the way")
    kept = [path for path in node.data_dir.rglob("*.log") if "strange" in str(path)]
    assert [path.read_bytes() for path in kept] == [contents], "and still there"
    eventually(lambda: not differing_replicas(trio, topic, 1), "what is known is untouched")


def test_data_is_kept_by_a_node_whose_metadata_is_lost(trio: list[NodeProcess]) -> None:
    """It knows of no topic when it comes back, which is no reason to remove their data."""
    wait_until_agreed(trio, brokers=ALL)
    topic = new_topic(trio[0], ALL, min_insync_replicas="2")
    workload = Workload(trio, topic, 1).start()
    workload.wait_for_progress(200)
    node = trio[2]
    node.kill()
    before = replica_bytes(node, topic, 0)
    shutil.rmtree(node.data_dir / "metadata")
    node.restart_with(join=trio[0].peer)
    node.start()
    Faults(trio, workload).wait_until_whole()
    workload.wait_for_progress()
    workload.stop()
    assert workload.verify() == []
    eventually(lambda: not differing_replicas(trio, topic, 1), "all have the same")
    assert replica_bytes(node, topic, 0).startswith(before[: len(before) // 2])
    assert "setting data aside" not in node.log_since_start()


@pytest.fixture
def one_small(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    need_private_mounts()
    made = three_nodes(tmp_path, {"replica.lag.time.max.ms": "1500"}, small_disk=(3, SMALL_DISK_BYTES))
    for node in made:
        node.start(wait=False)
    wait_until_agreed(made, brokers=ALL)
    yield made
    for node in made:
        node.close()


def test_a_node_with_a_full_disk_refuses_writes_lets_others_lead_and_recovers_by_itself(
    one_small: list[NodeProcess],
) -> None:
    small, other = one_small[2], one_small[0]
    led = new_topic(small, [3, 1, 2], min_insync_replicas="2")
    followed = new_topic(small, [1, 2, 3], min_insync_replicas="2")
    workload = Workload(one_small, led, 1).start()
    workload.wait_for_progress()
    small.fill_disk()
    with OneNode(small) as at, OneNode(other) as beside, OneNode(one_small[1]) as third:
        # What the workload writes may have met the full disk first, and then others lead already.
        eventually(
            lambda: (
                at.produce(led, 0, b"x" * 100_000).error
                in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            ),
            "writes are refused",
        )
        eventually(lambda: any(node.fetch(led, 0).values for node in (at, beside, third)), "reads go on, at who leads")
        eventually(
            lambda: beside.produce(followed, 0, b"y", timeout_ms=1000).error is ErrorCode.NONE,
            "the others go on without the full follower",
        )
        eventually(lambda: beside.partition(led).leader in (1, 2), "another leads what the full one led", 30.0)
        workload.wait_for_progress(deadline_s=30.0)
        small.free_disk()
        eventually(lambda: beside.partition(followed).isr == (1, 2, 3), "it catches up by itself", 30.0)
    workload.wait_for_progress(deadline_s=60.0)
    Faults(one_small, workload).wait_until_whole()
    workload.stop()
    assert small.running
    assert small.log_since_start().count("this replica cannot follow") < 10, "told once, not ten times a second"
    assert workload.verify() == []
    for topic in (led, followed):
        eventually(lambda t=topic: not differing_replicas(one_small, t, 1), "all have the same")
