"""A small data folder with some of everything a node keeps, made once for each released format and kept in the tests.

From the folder `tests`: `python -m harness.released_folder` runs a real node, fills it, stops it, and keeps its folder,
together with what must be found in it, as `node/released_folders/<version>`. It never changes a folder that is there:
what was released stays as it was written. Later versions open copies of all of them, and `check` them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from chronik import __version__
from chronik.client.admin.configs import ConfigSource, ResourceType, alter_configs, describe_configs
from chronik.client.admin.groups import commit_offsets, committed_offsets
from chronik.client.admin.topics import create_topic, delete_topic, list_topics
from chronik.client.admin.transactions import describe_transaction
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer, ConsumerSettings
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import EARLIEST, Isolation, end_offsets
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chronik.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from chronik.protocol.records import Compression, Record, build_batch
from harness.node_process import NodeProcess
from harness.waiting import eventually
from harness.wire_producer import WireProducer, until_done

FOLDERS = Path(__file__).parent.parent / "node" / "released_folders"
WRITTEN_AT_MS = 1_750_000_000_000
SNAPSHOT_ENTRIES = 100
KEPT_FOR_EVER = {"retention.ms": "-1"}
SMALL_SEGMENTS = {"segment.bytes": "1024", "index.interval.bytes": "100"}
OPEN_MS = 10_000
"""A transaction that is left open is open still when the node stops, and has timed out when the folder is opened."""
FOR_EVER_MINUTES, FOR_EVER_MS = 2**31 - 1, 2**31 - 1
"""Folders are opened years after they were made: nothing in them may be too old for the node that does."""
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "metadata.snapshot.entries": str(SNAPSHOT_ENTRIES),
    "offsets.retention.minutes": str(FOR_EVER_MINUTES),
    "producer.id.expiration.ms": str(FOR_EVER_MS),
    "transactional.id.expiration.ms": str(FOR_EVER_MS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
NODE_SETTING = ("num.partitions", "4")
PLAIN = TopicPartition("orders", 0)
PACKED = TopicPartition("orders", 1)
SECURE = TopicPartition("payments", 0)
GROUP = "billing"


class Written(msgspec.Struct, frozen=True):
    """What is in the folder. Values are listed by place, written as topic-partition; those that only readers of
    committed records see are listed where they differ."""

    version: str
    cluster_id: str
    topics: dict[str, str]
    configs: dict[str, dict[str, str]]
    values: dict[str, list[str]]
    committed_values: dict[str, list[str]]
    group_offsets: dict[str, int]
    producer_id: int
    next_sequence: int
    last_batch_at: int
    transactions: dict[str, str]


def produce(
    cluster: Cluster,
    place: TopicPartition,
    values: list[str],
    *,
    producer_id: int = -1,
    sequence: int = -1,
    compression: Compression = Compression.NONE,
) -> tuple[ErrorCode, int]:
    """Writes one batch as it is given; the answer, and the offset it names."""
    records = [Record(n, WRITTEN_AT_MS, b"k%d" % n, value.encode()) for n, value in enumerate(values)]
    epoch = -1 if producer_id < 0 else 0
    batch = build_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, compression=compression
    )
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=place.topic, partition_data=[PartitionProduceData(index=place.partition, records=batch)]
            )
        ],
    )
    answer = cluster.call(cluster.leader(place), request, ProduceResponse, newest=12)
    (found,) = answer.responses[0].partition_responses
    return ErrorCode(found.error_code), found.base_offset


def fill(cluster: Cluster) -> Written:
    """Writes some of everything into a fresh node."""
    orders = create_topic(cluster, "orders", partitions=2, configs={**KEPT_FOR_EVER, **SMALL_SEGMENTS})
    payments = create_topic(cluster, "payments", partitions=1, configs=KEPT_FOR_EVER)
    create_topic(cluster, "deleted", partitions=1)
    delete_topic(cluster, "deleted")
    alter_configs(cluster, ResourceType.BROKER, "", dict([NODE_SETTING]))
    for number in range(SNAPSHOT_ENTRIES):  # a snapshot is taken on the way, and the log goes on behind it
        alter_configs(cluster, ResourceType.TOPIC, "orders", {"max.message.bytes": str(100_000 + number)})

    values: dict[str, list[str]] = {str(PLAIN): [], str(PACKED): []}
    init = cluster.call_any(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse)
    sequence = last_at = 0
    for number in range(4):
        lines = [f"order {number}.{line} " + "x" * 150 for line in range(3)]
        code, last_at = produce(cluster, PLAIN, lines, producer_id=init.producer_id, sequence=sequence)
        assert code is ErrorCode.NONE, code
        sequence += len(lines)
        values[str(PLAIN)] += lines
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        lines = [f"packed by {codec.name} {line}" for line in range(2)]
        code, _ = produce(cluster, PACKED, lines, compression=codec)
        assert code is ErrorCode.NONE, code
        values[str(PACKED)] += lines

    commit_offsets(cluster, GROUP, {PLAIN: 5, PACKED: 3})
    for name, commit in (("kept", True), ("dropped", False), ("open", None), ("later", True)):
        writer = WireProducer(cluster, name, timeout_ms=OPEN_MS)
        until_done(writer.init, f"{name} begins")
        until_done(lambda w=writer, n=name: w.send(SECURE, n.encode()), f"{name} writes")
        if commit is not None:
            until_done(lambda w=writer, c=commit: w.end(commit=c), f"{name} ends")
    return Written(
        version=__version__,
        cluster_id=cluster.refresh().cluster_id or "",
        topics={"orders": orders.topic_id.hex(), "payments": payments.topic_id.hex()},
        configs={
            "orders": {**KEPT_FOR_EVER, **SMALL_SEGMENTS, "max.message.bytes": str(99_999 + SNAPSHOT_ENTRIES)},
            "payments": KEPT_FOR_EVER,
        },
        values={**values, str(SECURE): ["kept", "dropped", "open", "later"]},
        committed_values={str(SECURE): ["kept", "later"]},
        group_offsets={str(PLAIN): 5, str(PACKED): 3},
        producer_id=init.producer_id,
        next_sequence=sequence,
        last_batch_at=last_at,
        transactions={"kept": "CompleteCommit", "dropped": "CompleteAbort", "later": "CompleteCommit"},
    )


def check(cluster: Cluster, written: Written) -> None:
    """Everything is found as it was written, and goes on from there."""
    assert cluster.refresh().cluster_id == written.cluster_id
    assert {topic.name: topic.topic_id.hex() for topic in list_topics(cluster)} == written.topics
    for topic, configs in written.configs.items():
        found = describe_configs(cluster, ResourceType.TOPIC, topic)
        assert {c.name: c.value for c in found if c.source is ConfigSource.TOPIC} == configs
    broker = describe_configs(cluster, ResourceType.BROKER, "", names=[NODE_SETTING[0]])
    assert [(c.name, c.value) for c in broker] == [NODE_SETTING]

    places = (PLAIN, PACKED, SECURE)
    for isolation, values in (
        (Isolation.READ_UNCOMMITTED, written.values),
        (
            Isolation.READ_COMMITTED,
            {**written.values, **written.committed_values},
        ),  # once the transaction left open has timed out
    ):
        assert {str(place): read(cluster, place, isolation, len(values[str(place)])) for place in places} == values
    offsets = committed_offsets(cluster, GROUP)
    assert {str(place): found.offset for place, found in offsets.items()} == written.group_offsets
    assert {name: describe_transaction(cluster, name).state for name in written.transactions} == written.transactions

    end = end_offsets(cluster, [PLAIN])[PLAIN]
    last = written.values[str(PLAIN)][written.last_batch_at :]
    again = {"producer_id": written.producer_id, "sequence": written.next_sequence - len(last)}
    assert produce(cluster, PLAIN, last, **again) == (ErrorCode.NONE, written.last_batch_at), "a retry, known as one"
    assert end_offsets(cluster, [PLAIN])[PLAIN] == end, "a retry is not written again"
    gap = {"producer_id": written.producer_id, "sequence": written.next_sequence + 1}
    assert produce(cluster, PLAIN, ["gap"], **gap)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    following = {"producer_id": written.producer_id, "sequence": written.next_sequence}
    assert produce(cluster, PLAIN, ["next"], **following) == (ErrorCode.NONE, end)
    fresh = cluster.call_any(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse)
    assert fresh.producer_id > written.producer_id, "no producer id is given out twice"
    assert create_topic(cluster, "after").topic_id.hex() not in written.topics.values()


def read(cluster: Cluster, place: TopicPartition, isolation: Isolation, count: int) -> list[str]:
    """The values of a partition; waits until there are as many as expected."""
    found: list[str] = []
    with Consumer(cluster, {place: EARLIEST}, ConsumerSettings(isolation=isolation)) as consumer:

        def enough() -> bool:
            found.extend(record.value.decode() for record in consumer.poll(0.5) if record.value is not None)
            return len(found) >= count

        eventually(enough, f"{count} records of {place} are read; there are {found}")
    return found


def make(folder: Path) -> None:
    """Makes the folder of this version. A node's lock file is no part of it."""
    with tempfile.TemporaryDirectory() as scratch:
        node = NodeProcess(Path(scratch), settings=SETTINGS, arguments=("--host-name", "kept")).start()
        try:
            with Cluster(node.bootstrap) as cluster:
                written = fill(cluster)
            node.stop()
        finally:
            node.close()
        shutil.copytree(node.data_dir, folder / "node", ignore=shutil.ignore_patterns("chronik.pid"))
    (folder / "written.json").write_bytes(msgspec.json.format(msgspec.json.encode(written)) + b"\n")


if __name__ == "__main__":
    target = FOLDERS / __version__
    if target.exists():
        sys.exit(f"{target} is there already, and what was released is never changed. Raise the version first")
    make(target)
    print(f"made {target}: {sum(path.stat().st_size for path in target.rglob('*') if path.is_file())} bytes")
