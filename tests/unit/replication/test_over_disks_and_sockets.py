"""Replicas over real logs and real connections: the bytes on every disk are the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chronik.metadata import commands
from chronik.metadata.commands import CreateTopic, LeaderChange, RegisterBroker, SetPartitionLeader, UpdateBrokerStatus
from chronik.metadata.model import BrokerStatus
from chronik.metadata.store import MetadataStore
from chronik.protocol.records import Record, build_batch, parse_batches
from chronik.raft.transport import PeerTransport
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from chronik.replication.partition import Partition
from chronik.storage import LogManager
from harness.replica_nodes import OneLog, incarnation, settle

TOPIC_ID = b"events-topic-id."


class Broker:
    """What a node needs to have replicas."""

    def __init__(self, node_id: int, folder: Path, consensus: OneLog) -> None:
        self.node_id = node_id
        self.store = MetadataStore(consensus)
        self.logs = LogManager(folder)
        self.transport = PeerTransport(node_id, "127.0.0.1", 0)
        self.transport.identify(bytes([node_id]) * 16, "cluster")
        self.replicas = ReplicaManager(
            node_id,
            incarnation(node_id),
            self.store,
            self.logs,
            transport=self.transport,
            lease=Lease.permanent(),
        )

    async def start(self) -> None:
        await self.transport.start()
        await self.logs.start()
        self.replicas.start()

    async def stop(self) -> None:
        self.replicas.stop()
        await self.transport.close()
        await self.logs.close()

    def partition(self) -> Partition:
        return self.replicas.partition("events", 0)


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.consensus = OneLog()
        self.brokers = {node_id: Broker(node_id, folder / str(node_id), self.consensus) for node_id in (1, 2, 3)}
        self.consensus.stores = [broker.store for broker in self.brokers.values()]

    async def start(self) -> None:
        for broker in self.brokers.values():
            await broker.start()
        for broker in self.brokers.values():
            for other in self.brokers.values():
                broker.transport.set_peer(other.node_id, "127.0.0.1", other.transport.port)
            self.commit(RegisterBroker(broker.node_id, incarnation(broker.node_id), "127.0.0.1", 1))
            self.commit(UpdateBrokerStatus(broker.node_id, BrokerStatus.ONLINE))

    def commit(self, command: commands.Command) -> None:
        assert self.consensus.commit(commands.encode(command)).ok

    def elect(self, leader: int) -> None:
        info = self.brokers[1].store.image.topics["events"].partitions[0]
        self.commit(SetPartitionLeader([LeaderChange(TOPIC_ID, 0, leader, info.partition_epoch)]))

    async def all_have(self, end: int) -> None:
        await settle(
            lambda: all(
                broker.partition().end_offset == end and broker.partition().high_watermark == end
                for broker in self.brokers.values()
            ),
            f"all replicas end at {end}",
            turns=6000,
        )

    async def contents(self, node_id: int) -> bytes:
        log = self.brokers[node_id].partition().log
        found, offset = b"", log.log_start_offset
        while offset < log.end_offset:
            data = bytes(await log.read(offset, 1 << 20, end_offset=log.end_offset))
            found += data
            offset = parse_batches(data)[-1].last_offset + 1
        return found


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.start()
    yield made
    for broker in made.brokers.values():
        await broker.stop()


def batch(number: int, size: int = 100) -> memoryview:
    return memoryview(build_batch([Record(0, 1_700_000_000_000, b"k%d" % number, bytes(size), [])]))


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_all_replicas_hold_the_same_bytes(cluster: Cluster, durability: str) -> None:
    cluster.commit(CreateTopic("events", TOPIC_ID, ((1, 2, 3),), {"durability": durability}))
    leader = cluster.brokers[1].partition()
    waits = []
    for number in range(200):
        appended = leader.append(batch(number), required_acks=-1, now_ms=1)
        waits.append(leader.committed(appended.last_offset + 1))
        if number % 20 == 0:
            await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*(wait for wait in waits if wait is not None)), 20)
    await cluster.all_have(200)
    first = await cluster.contents(1)
    assert await cluster.contents(2) == first and await cluster.contents(3) == first


async def test_a_log_that_parted_is_cut_and_becomes_the_same_again(cluster: Cluster) -> None:
    cluster.commit(CreateTopic("events", TOPIC_ID, ((1, 2, 3),), {}))
    leader = cluster.brokers[1].partition()
    for number in range(5):
        leader.append(batch(number), required_acks=-1, now_ms=1)
    await asyncio.wait_for(leader.committed(5) or asyncio.sleep(0), 20)
    await cluster.all_have(5)
    stale = cluster.brokers[1].store
    cluster.consensus.stores.remove(stale)
    behind = len(cluster.consensus.entries)
    info = cluster.brokers[2].store.image.topics["events"].partitions[0]
    cluster.commit(SetPartitionLeader([LeaderChange(TOPIC_ID, 0, 2, info.partition_epoch)]))
    for number in range(3):
        leader.append(batch(100 + number), required_acks=1, now_ms=1)
    successor = cluster.brokers[2].partition()
    for number in range(4):
        successor.append(batch(200 + number), required_acks=1, now_ms=1)
    stale.apply(cluster.consensus.entries[behind:])
    cluster.consensus.stores.append(stale)
    await cluster.all_have(9)
    first = await cluster.contents(2)
    assert await cluster.contents(1) == first and await cluster.contents(3) == first
    assert cluster.brokers[1].replicas.metrics.truncations >= 1


async def test_a_follower_far_behind_catches_up_in_large_answers(cluster: Cluster) -> None:
    cluster.commit(CreateTopic("events", TOPIC_ID, ((1,),), {"durability": "os"}))
    leader = cluster.brokers[1].partition()
    for number in range(100):
        leader.append(batch(number, 100_000), required_acks=1, now_ms=1)
    info = leader.info
    change = commands.Reassignment(TOPIC_ID, 0, (1, 2, 3), info.partition_epoch)
    cluster.commit(commands.AssignPartition([change]))
    await settle(lambda: set(leader.isr) == {1, 2, 3}, "the new replicas are in sync", turns=8000)
    first = await cluster.contents(1)
    assert len(first) > 10_000_000
    assert await cluster.contents(2) == first and await cluster.contents(3) == first
