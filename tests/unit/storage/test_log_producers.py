"""Idempotence and transactions: what a log remembers of its producers, also after a restart."""

from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.protocol.records.control import build_end_transaction_marker
from chronik.protocol.records.header import LAST_SEQUENCE
from chronik.storage import AppendInfo, LogConfig, PartitionLog
from chronik.storage import producers as producers_module
from chronik.storage.producer_snapshot import BadSnapshot, decode_snapshot, encode_snapshot
from harness.simulated_disk import SimulatedDisk
from harness.storage_logs import BASE_TIME, TOPIC_ID, append, read_all, simulated, synced

CONFIG = LogConfig()


def send(
    log: PartitionLog,
    sequence: int,
    *,
    producer: int = 7,
    epoch: int = 0,
    count: int = 1,
    transactional: bool = False,
    **options: object,
) -> AppendInfo:
    data = build_batch(
        [Record(number, BASE_TIME, b"k", b"%d" % sequence) for number in range(count)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append(data, leader_epoch=1, now_ms=BASE_TIME, **options)  # type: ignore[arg-type]


def end(log: PartitionLog, *, committed: bool, producer: int = 7, epoch: int = 0, coordinator: int = 0) -> AppendInfo:
    marker = build_end_transaction_marker(
        committed=committed,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=coordinator,
        timestamp=BASE_TIME,
    )
    return log.append(marker, leader_epoch=1, now_ms=BASE_TIME, internal=True)


def refused_with(code: ErrorCode, log: PartitionLog, *arguments: int, **fields: object) -> bool:
    with pytest.raises(KafkaError) as refused:
        send(log, *arguments, **fields)  # type: ignore[arg-type]
    return refused.value.code is code


async def test_a_repeated_batch_gets_the_offset_it_had_and_is_not_written_again() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        first = [send(log, 3 * number, count=3) for number in range(8)]
        assert [info.base_offset for info in first] == [0, 3, 6, 9, 12, 15, 18, 21]
        for number in range(3, 8):
            again = send(log, 3 * number, count=3)
            assert (again.duplicate, again.base_offset, again.last_offset) == (True, 3 * number, 3 * number + 2)
        assert refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 6, count=3), "only five are remembered"
        assert refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 21, count=2), "another batch than before"
        assert log.end_offset == 24


async def test_sequences_go_on_without_gaps() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0, count=3)
        assert refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 4)
        assert refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 2)
        assert refused_with(ErrorCode.INVALID_RECORD, log, -1)
        assert send(log, 3).base_offset == 3
        assert log.end_offset == 4


async def test_a_producer_nobody_knows_may_begin_anywhere_and_sequences_wrap() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        assert send(log, LAST_SEQUENCE - 1, count=2).base_offset == 0
        assert refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 1)
        assert send(log, 0).base_offset == 2
        assert send(log, LAST_SEQUENCE - 1, count=2).duplicate


async def test_epochs_fence_and_a_new_one_begins_at_zero() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0, epoch=3)
        assert refused_with(ErrorCode.INVALID_PRODUCER_EPOCH, log, 1, epoch=2)
        assert refused_with(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log, 1, epoch=4)
        assert send(log, 0, epoch=4).base_offset == 1
        assert refused_with(ErrorCode.INVALID_PRODUCER_EPOCH, log, 1, epoch=3)


async def test_a_log_without_producers_remembers_nothing() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"a")
        assert log.producer_states is None and log.producers() == []


@pytest.mark.parametrize("stop", ["cleanly", "by a power cut", "by a power cut after a roll and a checkpoint"])
async def test_all_five_batches_are_known_after_a_restart(stop: str) -> None:
    disk = SimulatedDisk()
    clean = stop == "cleanly"
    async with simulated(disk, CONFIG, close=clean) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for sequence in range(8):
            send(log, sequence)
            if sequence == 5 and stop.endswith("checkpoint"):
                log.roll()
                await synced(log)
                await logs._checkpointer.run()
        await synced(log)
        if not clean:
            disk.power_cut(keep=0.0)
    async with simulated(disk, CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for sequence in range(3, 8):
            assert send(log, sequence).duplicate
        assert send(log, 8).base_offset == 8


async def test_each_segment_keeps_its_snapshot_and_of_the_others_the_newest_stays() -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=400)
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for sequence in range(20):
            send(log, sequence)
            await synced(log)
            await logs._checkpointer.run()
        bases = log.bases[1:]
        on_disk = sorted(int(name[:20]) for name in disk.names("/data/t-0") if name.endswith(".snapshot"))
        assert on_disk == log.snapshot_offsets
        assert set(bases) <= set(on_disk) and on_disk[-1] == 20
        assert len(on_disk) <= len(bases) + 2
        log.set_high_watermark(20)
        log.drop_oldest(2)
        left = [int(name[:20]) for name in disk.names("/data/t-0") if name.endswith(".snapshot")]
        assert bases[0] not in left and bases[-1] in left


async def test_idle_producers_are_forgotten_but_not_in_a_transaction() -> None:
    now = [BASE_TIME]
    async with simulated(SimulatedDisk(), CONFIG, clock=lambda: now[0] / 1000) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0, producer=7)
        send(log, 0, producer=8, transactional=True)
        now[0] += 24 * 3_600_000 + 1
        await logs._housekeeping.expire_producers()
        assert [info.producer_id for info in log.producers()] == [8]


async def test_too_many_producers_push_out_the_idlest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers_module, "PRODUCERS_MAX", 10)
    monkeypatch.setattr(producers_module, "EVICTED_AT_ONCE", 2)
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0, producer=1000, transactional=True)
        for producer in range(50):
            send(log, 0, producer=producer)
        known = [info.producer_id for info in log.producers()]
        assert len(known) <= 10 and 1000 in known


async def test_a_snapshot_has_kafkas_format_and_rejects_damage() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 4, producer=9, epoch=2, count=3, transactional=True)
        assert log.producer_states is not None
        raw = encode_snapshot(log.producer_states)
        version, crc, count = struct.unpack_from(">hIi", raw)
        assert (version, count) == (1, 1) and crc == iscsi(raw[6:])
        assert struct.unpack_from(">qhiqiqiq", raw, 10) == (9, 2, 6, 2, 2, BASE_TIME, -1, 0)
        assert len(raw) == 10 + 46
        send(log, 7, producer=9, epoch=2, transactional=True)
        raw = encode_snapshot(log.producer_states)
        again = decode_snapshot(raw, BASE_TIME)
        assert encode_snapshot(again) == raw and again.open == {0: 9}
        for byte in range(len(raw)):
            damaged = bytearray(raw)
            damaged[byte] ^= 1
            with pytest.raises(BadSnapshot):
                decode_snapshot(bytes(damaged), BASE_TIME)


# --- transactions ------------------------------------------------------------------------------------------------


async def test_the_last_stable_offset_waits_for_the_oldest_open_transaction() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        append(log, b"plain")
        send(log, 0, producer=7, transactional=True)  # 1
        send(log, 0, producer=8, transactional=True)  # 2
        assert log.last_stable_offset == 0, "bounded by the high watermark"
        log.set_high_watermark(2)
        assert log.last_stable_offset == 1
        end(log, committed=True, producer=7)  # 3
        log.set_high_watermark(3)
        assert log.last_stable_offset == 1, "the marker is not replicated yet"
        log.set_high_watermark(4)
        assert log.last_stable_offset == 2
        end(log, committed=False, producer=8)  # 4
        log.set_high_watermark(5)
        assert log.last_stable_offset == 5
        assert [entry.producer_id for entry in log.open_transactions()] == []


async def test_aborted_transactions_are_listed_for_the_range_that_is_read() -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=400)
    async with simulated(disk, config, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for number in range(6):
            send(log, number, transactional=True)  # 0, 2, 4, …
            end(log, committed=number % 2 == 0)  # 1, 3, 5, …
        await synced(log)
        assert log.aborted_transactions(0, 12) == [(7, 2), (7, 6), (7, 10)]
        assert log.aborted_transactions(4, 8) == [(7, 6)]
        assert log.aborted_transactions(0, 2) == []
        disk.power_cut(keep=0.0)
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        assert len(log.segments) > 1
        assert log.aborted_transactions(0, 12) == [(7, 2), (7, 6), (7, 10)]
    async with simulated(disk, config) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        assert log.aborted_transactions(0, 12) == [(7, 2), (7, 6), (7, 10)]


async def test_an_open_transaction_survives_a_crash() -> None:
    disk = SimulatedDisk()
    async with simulated(disk, CONFIG, close=False) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0, transactional=True)
        await synced(log)
        log.set_high_watermark(1)
        await logs._checkpointer.run()
        send(log, 1, transactional=True)
        await synced(log)
        disk.power_cut(keep=0.0)
    async with simulated(disk, CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        log.set_high_watermark(2)
        assert log.last_stable_offset == 0 and log.has_open_transaction(7, 0)
        end(log, committed=False)
        log.set_high_watermark(3)
        assert log.last_stable_offset == 3 and log.aborted_transactions(0, 3) == [(7, 0)]


async def test_markers_are_for_coordinators_and_fence() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0, epoch=2, transactional=True)
        assert refused_with(ErrorCode.INVALID_TXN_STATE, log, 1, epoch=2), "a plain batch inside of a transaction"
        end(log, committed=True, epoch=2, coordinator=5)
        for fields, code in (
            ({"epoch": 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
            ({"epoch": 2, "coordinator": 4}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ):
            with pytest.raises(KafkaError) as refused:
                end(log, committed=True, **fields)
            assert refused.value.code is code
        end(log, committed=True, epoch=3, coordinator=5)
        assert refused_with(ErrorCode.INVALID_PRODUCER_EPOCH, log, 1, epoch=2, transactional=True)
        assert send(log, 0, epoch=3, transactional=True).base_offset == 3


async def test_a_coordinators_batch_needs_no_sequence() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        for _ in range(2):
            send(log, -1, transactional=True, internal=True)
        assert [entry.first_offset for entry in log.open_transactions()] == [0]


async def test_a_transaction_that_ends_while_it_is_verified_is_not_begun_again() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        token = log.begin_verification(7, 0)
        assert token is not None and log.begin_verification(7, 0) == token
        end(log, committed=False)  # the coordinator gave up on it meanwhile
        with pytest.raises(KafkaError) as refused:
            send(log, 0, transactional=True, verification=token)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        token = log.begin_verification(7, 0)
        assert send(log, 0, transactional=True, verification=token).base_offset == 1
        assert log.begin_verification(7, 0) is None, "it is open now"
        assert send(log, 1, transactional=True, verification=token).base_offset == 2


async def test_a_follower_has_the_state_of_its_leader() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        leader, follower = logs.create("t", 0, TOPIC_ID), logs.create("t", 1, TOPIC_ID)
        send(leader, 0, transactional=True)
        end(leader, committed=False)
        send(leader, 1, transactional=True)
        data = leader.read_nowait(0, 1 << 20)
        assert data is not None
        follower.append_replica(data)
        assert follower.producers() == leader.producers()
        assert follower.aborted_transactions(0, 3) == [(7, 0)]
        assert follower.open_transactions() == leader.open_transactions()
        assert await read_all(follower) == await read_all(leader)


async def test_a_token_from_before_a_truncation_is_not_taken_for_a_later_one() -> None:
    async with simulated(SimulatedDisk(), CONFIG) as logs:
        log = logs.create("t", 0, TOPIC_ID)
        send(log, 0)
        stale = log.begin_verification(8, 0)
        log.truncate_to(0)
        fresh = log.begin_verification(8, 0)
        assert stale is not None and fresh is not None
        with pytest.raises(KafkaError) as refused:
            send(log, 0, producer=8, transactional=True, verification=stale)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        send(log, 0, producer=8, transactional=True, verification=fresh)
