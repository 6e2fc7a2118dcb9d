"""Loading what is kept in a partition of an internal topic, as compaction left it."""

from __future__ import annotations

from typing import Any

import pytest

from chronik.coordination.loader import Loader, Status
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.protocol.records.control import build_end_transaction_marker
from harness.storage_logs import until


class LogOfBatches:
    """A partition whose log is these batches."""

    topic, index, log_start_offset = "__consumer_offsets", 0, 0

    def __init__(self, batches: list[bytearray], end_offset: int) -> None:
        self._data = b"".join(batches)
        self.end_offset = end_offset

    def read_nowait(self, offset: int, max_bytes: int, *, replica_id: int) -> bytes:
        assert offset == 0
        return self._data

    def committed(self, offset: int) -> None:
        return None


class Collected:
    """A shard that keeps what it is told."""

    def __init__(self, partition: Any) -> None:
        self.partition = partition
        self.status = Status.LOADING
        self.told: list[object] = []

    def replay(self, key: bytes | None, value: bytes | None, log_offset: int, producer_id: int | None) -> None:
        self.told.append((log_offset, key, value, producer_id))

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        self.told.append((producer_id, committed))

    def resume(self) -> None:
        self.status = Status.ACTIVE

    def loaded(self) -> dict[str, int]:
        return {}


async def test_batches_that_compaction_has_emptied_are_passed_over() -> None:
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    emptied = {"last_offset_delta": 0, **producer}
    batches = [
        build_batch([], base_offset=0, **emptied),
        build_batch([], base_offset=1, control=True, **emptied),
        build_batch([Record(2, 0, b"k", b"v")], base_offset=2, **producer),
        build_end_transaction_marker(
            committed=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=3
        ),
    ]
    shard = Collected(LogOfBatches(batches, 4))
    Loader().load(shard)
    await until(lambda: shard.status is Status.ACTIVE)
    assert shard.told == [(2, b"k", b"v", 7), (7, True)]


class FailingOnce(LogOfBatches):
    """Gives a batch at a time, and fails once in the middle."""

    def __init__(self, batches: list[bytearray]) -> None:
        super().__init__(batches, len(batches))
        self._batches = batches
        self._fails_at: int | None = 3

    def read_nowait(self, offset: int, max_bytes: int, *, replica_id: int) -> bytes:
        if offset == self._fails_at:
            self._fails_at = None
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk does not answer")
        return bytes(self._batches[offset])


async def test_a_load_that_failed_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronik.coordination.loader.RETRY_S", 0.0)
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    marker: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp": 0}
    batches = [
        build_batch([Record(0, 0, b"first", b"v")], base_offset=0, **producer),
        build_end_transaction_marker(committed=True, base_offset=1, **marker),
        build_batch([Record(2, 0, b"second", b"v")], base_offset=2, **producer),
        build_end_transaction_marker(committed=False, base_offset=3, **marker),
    ]
    shard = Collected(FailingOnce(batches))
    Loader().load(shard)
    await until(lambda: shard.status is Status.ACTIVE)
    # Told again from the start, the first marker would commit the second transaction, which was aborted.
    assert shard.told == [(0, b"first", b"v", 7), (7, True), (2, b"second", b"v", 7), (7, False)]
