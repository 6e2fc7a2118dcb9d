"""Writing: partitions, batches, acknowledgements, retries without duplicates."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as their_murmur2

from chronik.client import Cluster, ClusterSettings, Producer, ProducerSettings, RetryPolicy, TopicPartition
from chronik.client.errors import GaveUp
from chronik.client.partitioner import StickyPartitioner, murmur2, partition_for_key
from chronik.protocol.api import ApiKey
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Compression, Record, parse_batches, read_records
from harness.fake_cluster import FakeCluster
from harness.record_oracles import ALL_CODECS
from unit.client.conftest import IMPATIENT

IDEMPOTENT = ProducerSettings(idempotent=True)


def stored(fake: FakeCluster, topic: str, partition: int = 0) -> list[Record]:
    return [record for batch in fake.topics[topic].partitions[partition].batches for record in read_records(batch)]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_java_does_it(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_keys_are_hashed_as_kafka_python_does_it(key: bytes) -> None:
    assert murmur2(key) == their_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 100))
def test_keys_go_to_the_partitions_that_aiokafka_chooses(key: bytes, count: int) -> None:
    everywhere = list(range(count))
    assert partition_for_key(key, count) == DefaultPartitioner()(key, everywhere, everywhere)


def test_records_without_keys_stay_with_a_partition_until_its_batch_is_sent() -> None:
    sticky = StickyPartitioner(seed=1)
    first = sticky.partition("t", 8)
    assert {sticky.partition("t", 8) for _ in range(20)} == {first}
    sticky.batch_sent("t", (first + 1) % 8, 8)
    assert sticky.partition("t", 8) == first
    sticky.batch_sent("t", first, 8)
    assert sticky.partition("t", 8) != first
    assert sticky.partition("t", 1) == 0


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_records_arrive_with_keys_headers_and_timestamps(
    fake: FakeCluster, cluster: Cluster, codec: Compression
) -> None:
    fake.create("t")
    with Producer(cluster, ProducerSettings(compression=codec)) as producer:
        one = producer.send("t", b"v", key=b"k", headers=[("h", b"x")], timestamp_ms=1234)
        two = producer.send("t", None, timestamp_ms=5678)
        assert not one.done
        producer.flush()
    assert (one.offset, two.offset, one.timestamp) == (0, 1, 1234)
    assert one.place == TopicPartition("t", 0)
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in stored(fake, "t")] == [
        (b"k", b"v", 1234, [("h", b"x")]),
        (None, None, 5678, []),
    ]
    (info,) = parse_batches(fake.topics["t"].partitions[0].batches[0])
    assert info.compression is codec


def test_keys_decide_the_partition_over_all_brokers(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    with Producer(cluster) as producer:
        sent = {b"key-%d" % n: producer.send("t", b"v", key=b"key-%d" % n) for n in range(60)}
    for key, delivery in sent.items():
        assert delivery.place.partition == partition_for_key(key, 3)
        assert key in [r.key for r in stored(fake, "t", delivery.place.partition)]
    assert {node for node, key, _, _ in fake.journal if key is ApiKey.PRODUCE} == {1, 2, 3}
    assert len(fake.asked(ApiKey.PRODUCE)) == 3


def test_a_full_batch_is_sent_without_a_flush(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    producer = Producer(cluster, ProducerSettings(batch_bytes=1000))
    deliveries = [producer.send("t", b"x" * 300) for _ in range(4)]
    assert deliveries[3].done and deliveries[3].offset == 3
    producer.send("t", b"x" * 300)
    assert len(stored(fake, "t")) == 4
    producer.flush()
    assert len(stored(fake, "t")) == 5


def test_an_exception_in_the_block_does_not_send_what_was_gathered(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with pytest.raises(RuntimeError):
        with Producer(cluster) as producer:
            producer.send("t", b"x")
            raise RuntimeError
    assert stored(fake, "t") == []


def test_the_offset_of_an_unsent_record_cannot_be_asked_for(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    delivery = Producer(cluster).send("t", b"x")
    with pytest.raises(Exception, match="flush first"):
        _ = delivery.offset


def test_a_leader_that_moved_is_followed(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster) as producer:
        producer.send("t", b"1")
        producer.flush()
        fake.move_leader("t", 0, 3)
        producer.send("t", b"2")
        producer.flush()
    assert [r.value for r in stored(fake, "t")] == [b"1", b"2"]
    assert [node for node, key, _, _ in fake.journal if key is ApiKey.PRODUCE] == [1, 1, 3]


def test_only_the_partitions_that_failed_are_sent_again(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    with Producer(cluster) as producer:
        producer.send("t", b"warm", partition=0)
        producer.flush()
        fake.move_leader("t", 2, 1)
        for partition in range(3):
            producer.send("t", b"%d" % partition, partition=partition)
        producer.flush()
    assert [[r.value for r in stored(fake, "t", p)] for p in range(3)] == [[b"warm", b"0"], [b"1"], [b"2"]]


OUT_OF_TIME = ClusterSettings(retry=RetryPolicy(timeout_s=0.0))
"""As when a broker hung, or this process did, for as long as a failure may last."""


@pytest.mark.parametrize("settings", [IMPATIENT, OUT_OF_TIME])
def test_a_dead_broker_is_left_for_the_new_leader(fake: FakeCluster, settings: ClusterSettings) -> None:
    fake.create("t", partitions=3)
    with Cluster(fake.bootstrap, settings) as cluster, Producer(cluster) as producer:
        producer.send("t", b"1", partition=1)
        producer.flush()
        fake.nodes[2].stop()
        fake.move_leader("t", 1, 3)
        producer.send("t", b"2", partition=1)
        producer.send("t", b"other", partition=0)
        producer.flush()
    assert [r.value for r in stored(fake, "t", 1)] == [b"1", b"2"]
    assert [r.value for r in stored(fake, "t", 0)] == [b"other"]


def test_brokers_that_stay_dead_are_given_up(fake: FakeCluster) -> None:
    fake.create("t")
    with Cluster(fake.bootstrap, OUT_OF_TIME) as cluster:
        producer = Producer(cluster)
        producer.send("t", b"1")
        producer.flush()
        for _ in range(2):
            fake.hang_up(ApiKey.PRODUCE)
        producer.send("t", b"2")
        with pytest.raises(GaveUp, match="tried 2 times"):
            producer.flush()
    assert [r.value for r in stored(fake, "t")] == [b"1"]


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT])
def test_retriable_errors_are_tried_again(fake: FakeCluster, cluster: Cluster, code: ErrorCode) -> None:
    fake.create("t")
    fake.fail(ApiKey.PRODUCE, code, times=3)
    with Producer(cluster) as producer:
        producer.send("t", b"x")
    assert len(stored(fake, "t")) == 1
    assert len(fake.asked(ApiKey.PRODUCE)) == 4


def test_a_retriable_error_that_does_not_end_is_raised_with_its_code(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.fail(ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, times=10_000)
    producer = Producer(cluster)
    delivery = producer.send("t", b"x")
    with pytest.raises(KafkaError, match="tried") as caught:
        producer.flush()
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert delivery.error is not None
    with pytest.raises(KafkaError):
        _ = delivery.offset


def test_a_final_error_is_not_tried_again_and_says_what_to_do(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.fail(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
    producer = Producer(cluster)
    producer.send("t", b"x")
    with pytest.raises(KafkaError, match=r"max\.message\.bytes"):
        producer.flush()
    assert len(fake.asked(ApiKey.PRODUCE)) == 1
    producer.send("t", b"y")
    producer.flush()
    assert [r.value for r in stored(fake, "t")] == [b"y"]


def test_without_idempotence_an_unanswered_write_may_be_there_twice(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.hang_up(ApiKey.PRODUCE, after_work=True)
    with Producer(cluster) as producer:
        producer.send("t", b"x")
    assert [r.value for r in stored(fake, "t")] == [b"x", b"x"]


def test_with_idempotence_an_unanswered_write_is_there_once(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, IDEMPOTENT) as producer:
        for value in (b"1", b"2", b"3"):
            fake.hang_up(ApiKey.PRODUCE, after_work=True)
            producer.send("t", value)
            producer.flush()
    assert [r.value for r in stored(fake, "t")] == [b"1", b"2", b"3"]
    infos = [parse_batches(batch)[0] for batch in fake.topics["t"].partitions[0].batches]
    assert [info.base_sequence for info in infos] == [0, 1, 2]
    assert len({info.producer_id for info in infos}) == 1


def test_after_a_lost_batch_an_idempotent_producer_starts_over_under_a_new_id(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    producer = Producer(cluster, IDEMPOTENT)
    producer.send("t", b"1")
    producer.flush()
    fake.fail(ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.send("t", b"lost")
    with pytest.raises(KafkaError):
        producer.flush()
    producer.send("t", b"2")
    producer.flush()
    infos = [parse_batches(batch)[0] for batch in fake.topics["t"].partitions[0].batches]
    assert [info.base_sequence for info in infos] == [0, 0]
    assert infos[0].producer_id != infos[1].producer_id


def test_idempotence_needs_all_acknowledgements(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="acks"):
        Producer(cluster, ProducerSettings(idempotent=True, acks=1))


def test_without_acknowledgements_nothing_is_waited_for(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, ProducerSettings(acks=0)) as producer:
        delivery = producer.send("t", b"x")
        producer.flush()
        assert delivery.done and delivery.offset == -1
        cluster.connection(cluster.leader(TopicPartition("t", 0)))
    cluster.doubt("t")
    cluster.topic("t")  # an answer on the same connection: the write before it has been worked off
    assert [r.value for r in stored(fake, "t")] == [b"x"]


def test_topics_are_created_on_demand_if_the_cluster_does_that(fake: FakeCluster, cluster: Cluster) -> None:
    fake.auto_create = True
    with Producer(cluster) as producer:
        producer.send("fresh", b"x")
    assert len(stored(fake, "fresh")) == 1
    with pytest.raises(KafkaError, match="does not exist"):
        Producer(cluster, ProducerSettings(auto_create=False)).send("other", b"x")


def test_without_topic_ids_the_versions_with_names_are_used(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.give_topic_ids = False
    with Producer(cluster) as producer:
        producer.send("t", b"x")
    assert fake.versions_used(ApiKey.PRODUCE) == {12}
    assert len(stored(fake, "t")) == 1


@pytest.mark.parametrize("newest", [3, 7, 9, 13])
def test_every_kind_of_produce_version_works(fake: FakeCluster, cluster: Cluster, newest: int) -> None:
    fake.create("t")
    fake.offer(ApiKey.PRODUCE, 3, newest)
    with Producer(cluster) as producer:
        delivery = producer.send("t", b"x")
    assert delivery.offset == 0
    assert fake.versions_used(ApiKey.PRODUCE) == {newest}
