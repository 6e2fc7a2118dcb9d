"""Reading: raw and decoded, through leader changes, and what READ_COMMITTED hides."""

from __future__ import annotations

import threading

import pytest

from chronik.client import (
    EARLIEST,
    LATEST,
    ClientError,
    Cluster,
    Consumer,
    ConsumerSettings,
    Isolation,
    OffsetOutOfRange,
    TopicPartition,
    fetch_range,
)
from chronik.client.fetched import visible_batches
from chronik.client.offsets import earliest_offsets, end_offsets, offsets_for_time, partitions_of
from chronik.protocol.api import ApiKey
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from chronik.protocol.records import Compression, Record, build_batch, parse_batches
from chronik.protocol.records.control import build_end_transaction_marker
from harness.fake_cluster import FakeCluster
from harness.record_oracles import ALL_CODECS

T0 = TopicPartition("t", 0)
QUICK = ConsumerSettings(max_wait_ms=20)
COMMITTED = ConsumerSettings(max_wait_ms=20, isolation=Isolation.READ_COMMITTED)


def fill(
    fake: FakeCluster, *sizes: int, topic: str = "t", partition: int = 0, codec: Compression = Compression.NONE
) -> None:
    """Append batches of so many records; record n of the partition has value n and timestamp 1000 + n."""
    log = fake.topics["t"].partitions[partition]
    with fake.changed:
        for size in sizes:
            base = log.end
            records = [Record(i, 1000 + base + i, b"k", b"%d" % (base + i)) for i in range(size)]
            log.append(build_batch(records, compression=codec))
        fake.changed.notify_all()


def values(consumer: Consumer, count: int) -> list[int]:
    """The values of the next `count` records; fails when they do not come."""
    found: list[int] = []
    for _ in range(200):
        found += [int(record.value or b"-1") for record in consumer.poll(0.2)]
        if len(found) >= count:
            return found
    raise AssertionError(f"only {found} came, {count} were expected")


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_records_come_with_everything_they_have(fake: FakeCluster, cluster: Cluster, codec: Compression) -> None:
    fake.create("t")
    fake.topics["t"].partitions[0].append(
        build_batch(
            [Record(0, 77, b"k", b"v", [("h", b"x"), ("n", None)]), Record(1, 78, None, None)], compression=codec
        )
    )
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        one, two = consumer.poll()
    assert (one.topic, one.partition, one.offset, one.timestamp, one.key, one.value) == ("t", 0, 0, 77, b"k", b"v")
    assert one.headers == [("h", b"x"), ("n", None)]
    assert (two.offset, two.key, two.value, two.headers) == (1, None, None, [])


def test_reading_from_the_middle_of_a_batch_skips_what_comes_before(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 10, 5)
    with Consumer(cluster, {T0: 7}, QUICK) as consumer:
        assert values(consumer, 8) == list(range(7, 15))
        assert consumer.position(T0) == 15
        assert consumer.poll(0.05) == []


def test_earliest_and_latest_are_looked_up(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 10)
    fake.topics["t"].partitions[0].start = 4
    with Consumer(cluster, {T0: EARLIEST}, QUICK) as consumer:
        assert values(consumer, 6) == [4, 5, 6, 7, 8, 9]
    with Consumer(cluster, {T0: LATEST}, QUICK) as consumer:
        assert consumer.poll(0.05) == []
        fill(fake, 2)
        assert values(consumer, 2) == [10, 11]


def test_raw_batches_are_the_bytes_of_the_log(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 3, 4, codec=Compression.ZSTD)
    with Consumer(cluster, {T0: 4}, QUICK) as consumer:
        (fetched,) = consumer.fetch()
    assert bytes(fetched.data) == fake.topics["t"].partitions[0].batches[1]
    assert (fetched.fetch_offset, fetched.next_offset, fetched.high_watermark) == (4, 7, 7)
    assert [info.base_offset for info in fetched.batches] == [3]
    assert fetched.place == T0


def test_new_records_arrive_while_a_fetch_waits(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Consumer(cluster, {T0: 0}, ConsumerSettings(max_wait_ms=5000)) as consumer:
        assert consumer.fetch(0.01) == []
        timer = threading.Timer(0.05, fill, (fake, 1))
        timer.start()
        assert [record.offset for record in consumer.poll(5)] == [0]
        timer.join()


def test_partitions_of_several_leaders_are_read_together(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=6)
    for partition in range(6):
        fill(fake, 5, 5, partition=partition)
    with Consumer(cluster, dict.fromkeys(partitions_of(cluster, "t"), 0), QUICK) as consumer:
        assert sorted(values(consumer, 60)) == sorted(list(range(10)) * 6)
    assert {node for node, key, _, _ in fake.journal if key is ApiKey.FETCH} == {1, 2, 3}


def test_a_leader_change_in_the_middle_is_followed_without_loss_or_repetition(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    fill(fake, 2)
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        assert values(consumer, 2) == [0, 1]
        fake.move_leader("t", 0, 3)
        fill(fake, 2)
        assert values(consumer, 2) == [2, 3]
    assert {node for node, key, _, _ in fake.journal if key is ApiKey.FETCH} == {1, 3}


def test_a_dead_leader_is_left_for_the_new_one(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    fill(fake, 2, partition=1)
    where = TopicPartition("t", 1)
    with Consumer(cluster, {where: 0}, QUICK) as consumer:
        assert values(consumer, 2) == [0, 1]
        fake.nodes[2].stop()
        fake.move_leader("t", 1, 1)
        fill(fake, 1, partition=1)
        assert values(consumer, 1) == [2]


def test_a_connection_that_breaks_is_made_anew(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 2)
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        assert values(consumer, 2) == [0, 1]
        fake.nodes[1].cut_connections()
        fill(fake, 2)
        assert values(consumer, 2) == [2, 3]


def test_an_idle_connection_that_is_closed_does_not_disturb(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 1)
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        assert values(consumer, 1) == [0]
        fake.move_leader("t", 0, 3)
        fill(fake, 1)
        assert values(consumer, 1) == [1]
        fake.nodes[1].cut_connections()
        fill(fake, 1)
        assert values(consumer, 1) == [2]
        assert consumer.fetch(0.1) == []


def test_every_partition_gets_to_be_the_first_of_a_request(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    for partition in range(3):
        fake.move_leader("t", partition, 1)
    with Consumer(cluster, dict.fromkeys(partitions_of(cluster, "t"), 0), ConsumerSettings(max_wait_ms=1)) as consumer:
        for _ in range(6):
            consumer.fetch(0.02)
    firsts = {r.topics[0].partitions[0].partition for r in fake.asked(ApiKey.FETCH) if isinstance(r, FetchRequest)}
    assert firsts == {0, 1, 2}


def test_batches_from_before_the_offset_that_was_asked_for_are_left_out(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 2, 2, 2)
    everything = b"".join(fake.topics["t"].partitions[0].batches)
    topic_id = fake.topics["t"].topic_id
    data = PartitionData(high_watermark=6, records=everything)
    answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=topic_id, partitions=[data])])
    fake.scripts[ApiKey.FETCH] = lambda _: answer
    with Consumer(cluster, {T0: 3}, QUICK) as consumer:
        (fetched,) = consumer.fetch()
    assert [info.base_offset for info in fetched.batches] == [2, 4]
    assert [record.offset for record in fetched.records()] == [3, 4, 5]


def test_one_partition_without_a_leader_does_not_hold_up_the_others(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    fill(fake, 3, partition=1)
    fake.topics["t"].partitions[0].leader = -1
    with Consumer(cluster, {T0: 0, TopicPartition("t", 1): 0}, QUICK) as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        fill(fake, 1, partition=0)
        fake.move_leader("t", 0, 2)
        assert values(consumer, 1) == [0]


def test_a_partition_that_stays_without_a_leader_is_reported(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.topics["t"].partitions[0].leader = -1
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        with pytest.raises(KafkaError, match="no leader") as caught:
            consumer.fetch(10)
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE


def test_a_deleted_topic_is_reported(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        assert consumer.fetch(0.05) == []
        del fake.topics["t"]
        with pytest.raises(KafkaError) as caught:
            consumer.fetch(10)
    assert caught.value.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def test_an_offset_that_was_removed_is_an_error_that_says_what_is_left(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 10)
    fake.topics["t"].partitions[0].start = 6
    with Consumer(cluster, {T0: 2}, QUICK) as consumer:
        with pytest.raises(OffsetOutOfRange, match="4 offsets are gone") as caught:
            consumer.fetch()
        error = caught.value
        assert (error.topic, error.partition, error.offset, error.earliest, error.latest) == ("t", 0, 2, 6, 10)
        assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek(T0, 8)
        assert values(consumer, 2) == [8, 9]


def test_an_offset_beyond_the_end_is_an_error_too(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 3)
    with Consumer(cluster, {T0: 50}, QUICK) as consumer:
        with pytest.raises(OffsetOutOfRange, match="does not exist"):
            consumer.fetch()


def test_a_reader_can_ask_to_go_on_at_the_earliest_or_latest_offset(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 10)
    fake.topics["t"].partitions[0].start = 6
    with Consumer(cluster, {T0: 2}, ConsumerSettings(max_wait_ms=20, out_of_range=EARLIEST)) as consumer:
        assert values(consumer, 4) == [6, 7, 8, 9]
    with Consumer(cluster, {T0: 50}, ConsumerSettings(max_wait_ms=20, out_of_range=LATEST)) as consumer:
        assert consumer.poll(0.05) == []
        assert consumer.position(T0) == 10


def test_data_of_other_partitions_is_returned_before_an_error_is_raised(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    fake.move_leader("t", 1, 1)
    fill(fake, 2, partition=1)
    with Consumer(cluster, {T0: 99, TopicPartition("t", 1): 0}, QUICK) as consumer:
        assert [r.offset for r in consumer.poll()] == [0, 1]
        with pytest.raises(OffsetOutOfRange):
            consumer.poll()


def test_a_seek_overtakes_the_fetch_that_is_under_way(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 5, 5)
    with Consumer(cluster, {T0: 0}, ConsumerSettings(max_wait_ms=20, partition_max_bytes=1)) as consumer:
        assert len(consumer.fetch()) == 1
        consumer.seek(T0, 8)
        assert values(consumer, 2) == [8, 9]
        with pytest.raises(ValueError, match="not among"):
            consumer.seek(TopicPartition("t", 9), 0)


def test_a_batch_whose_bytes_changed_is_refused(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 3)
    log = fake.topics["t"].partitions[0]
    broken = bytearray(log.batches[0])
    broken[-2] ^= 1
    log.batches = [bytes(broken)]
    with Consumer(cluster, {T0: 0}, ConsumerSettings(max_wait_ms=20, check_crc=False)) as consumer:
        assert consumer.fetch()
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        with pytest.raises(KafkaError, match="CRC") as caught:
            consumer.fetch(10)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_fetch_versions_with_and_without_topic_ids_work(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 1)
    fake.give_topic_ids = False
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        assert values(consumer, 1) == [0]
    assert fake.versions_used(ApiKey.FETCH) == {12}


@pytest.mark.parametrize("newest", [4, 7, 11, 12, 13, 18])
def test_every_kind_of_fetch_version_works(fake: FakeCluster, cluster: Cluster, newest: int) -> None:
    fake.create("t")
    fill(fake, 3)
    fake.offer(ApiKey.FETCH, 4, newest)
    with Consumer(cluster, {T0: 1}, QUICK) as consumer:
        assert values(consumer, 2) == [1, 2]
    assert fake.versions_used(ApiKey.FETCH) == {newest}


def test_a_consumer_needs_something_to_read(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Consumer(cluster, {})


# -- transactions -----------------------------------------------------------------------------------------------------


def transactional(producer: int, *texts: bytes) -> bytearray:
    records = [Record(i, 5, None, text) for i, text in enumerate(texts)]
    return build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker(producer: int, *, committed: bool) -> bytearray:
    return build_end_transaction_marker(
        committed=committed, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=5
    )


@pytest.fixture
def transactions(fake: FakeCluster) -> FakeCluster:
    fake.create("t")
    log = fake.topics["t"].partitions[0]
    log.append(transactional(1, b"1 aborted"))  # 0
    log.append(transactional(2, b"2 committed"))  # 1
    log.append(build_batch([Record(0, 5, None, b"plain")]))  # 2
    log.append(marker(1, committed=False))  # 3
    log.sequences.clear()
    log.append(transactional(1, b"1 committed later"))  # 4
    log.append(marker(2, committed=True))  # 5
    log.append(marker(1, committed=True))  # 6
    log.sequences.clear()
    log.append(transactional(2, b"2 open"))  # 7
    log.aborted = [(1, 0)]
    log.stable = 7
    return fake


def test_read_committed_hides_aborted_records_markers_and_open_transactions(
    transactions: FakeCluster, cluster: Cluster
) -> None:
    with Consumer(cluster, {T0: 0}, COMMITTED) as consumer:
        seen = [record.value for record in consumer.poll()]
        assert seen == [b"2 committed", b"plain", b"1 committed later"]
        assert consumer.position(T0) == 7
        assert consumer.poll(0.05) == []


def test_read_uncommitted_shows_all_but_markers(transactions: FakeCluster, cluster: Cluster) -> None:
    with Consumer(cluster, {T0: 0}, QUICK) as consumer:
        seen = [record.value for record in consumer.poll()]
    assert seen == [b"1 aborted", b"2 committed", b"plain", b"1 committed later", b"2 open"]


def test_raw_fetches_name_the_aborted_transactions(transactions: FakeCluster, cluster: Cluster) -> None:
    with Consumer(cluster, {T0: 0}, COMMITTED) as consumer:
        (fetched,) = consumer.fetch()
    assert fetched.aborted == [(1, 0)]
    assert fetched.last_stable_offset == 7 and fetched.high_watermark == 8
    assert [info.base_offset for info in fetched.visible()] == [1, 2, 4]


def test_a_fetch_of_markers_only_moves_on_to_what_follows(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    log = fake.topics["t"].partitions[0]
    log.append(marker(1, committed=True))
    log.append(build_batch([Record(0, 5, None, b"after")]))
    with Consumer(cluster, {T0: 0}, ConsumerSettings(max_wait_ms=20, partition_max_bytes=1)) as consumer:
        assert [record.value for record in consumer.poll()] == [b"after"]


def test_two_aborted_transactions_of_one_producer_end_at_their_own_markers() -> None:
    parts = [
        transactional(1, b"a"),
        marker(1, committed=False),
        transactional(1, b"b"),
        marker(1, committed=True),
        transactional(1, b"c"),
        marker(1, committed=False),
    ]
    data = bytearray()
    for offset, part in enumerate(parts):
        part[:8] = offset.to_bytes(8, "big")
        data += part
    infos = parse_batches(data)
    assert [info.base_offset for info in visible_batches(data, infos, [(1, 4), (1, 0)])] == [2]


# -- ranges and offsets -----------------------------------------------------------------------------------------------


def test_a_range_is_read_to_its_end_and_not_beyond(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 4, 4, 4, 4)
    settings = ConsumerSettings(max_wait_ms=20, partition_max_bytes=1)
    fetched = list(fetch_range(cluster, T0, 2, 9, settings))
    assert [f.batches[0].base_offset for f in fetched] == [0, 4, 8]
    assert fetched[-1].next_offset == 12
    assert list(fetch_range(cluster, T0, 5, 5)) == []


def test_a_range_that_does_not_come_is_reported_with_the_place_it_stopped(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 4)
    with pytest.raises(ClientError, match="nothing came after 4"):
        list(fetch_range(cluster, T0, 0, 9, QUICK, idle_timeout_s=0.1))


def test_the_beginning_of_a_range_that_is_gone_is_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, 4)
    fake.topics["t"].partitions[0].start = 2
    with pytest.raises(OffsetOutOfRange):
        list(fetch_range(cluster, T0, 0, 4, QUICK))


def test_offsets_are_found_at_the_ends_and_by_time(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    for partition, count in enumerate((10, 3, 0)):
        if count:
            fill(fake, count, partition=partition)
    places = partitions_of(cluster, "t")
    assert list(end_offsets(cluster, places).values()) == [10, 3, 0]
    assert list(earliest_offsets(cluster, places).values()) == [0, 0, 0]
    starts = offsets_for_time(cluster, places, 1005)
    assert [starts[place] for place in places] == [5, 3, 0]


def test_listing_offsets_follows_a_leader_that_moved_and_retries(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    fill(fake, 10)
    places = partitions_of(cluster, "t")
    assert end_offsets(cluster, places)[T0] == 10
    fake.move_leader("t", 0, 3)
    fake.fail(ApiKey.LIST_OFFSETS, ErrorCode.OFFSET_NOT_AVAILABLE, times=2)
    assert end_offsets(cluster, places)[T0] == 10


@pytest.mark.parametrize("newest", [1, 4, 11])
def test_every_kind_of_list_offsets_version_works(fake: FakeCluster, cluster: Cluster, newest: int) -> None:
    fake.create("t")
    fill(fake, 10)
    fake.offer(ApiKey.LIST_OFFSETS, 1, newest)
    assert end_offsets(cluster, [T0]) == {T0: 10}
