"""The log of one partition: the class that replication, coordinators and the broker use.

    log_state     fields and offsets
    log_syncs     the sync that makes an append count, failure
    log_appends   append, append_replica, roll
    log_reads     read_nowait, read, searches by time, aborted transactions, epochs
    log_cuts      truncate_to, reset_to, delete_records_to

All methods run on the loop thread. Blocking work is handed to threads over immutable inputs.
"""

from __future__ import annotations

from typing import NamedTuple

from chronik.storage.log_config import LogConfig
from chronik.storage.log_cuts import LogCuts
from chronik.storage.log_reads import LogReads
from chronik.storage.producers import ProducerEntry


class ProducerInfo(NamedTuple):
    """One active producer, as DescribeProducers reports it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int


class OpenTransaction(NamedTuple):
    """A transaction without a marker yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int


class PartitionLog(LogCuts, LogReads):
    """One partition's log."""

    __slots__ = ()

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Settings change at run time; a log that becomes `fsync` syncs what it has."""
        was_synced = self._config.synced
        self._config = config
        if config.synced and not was_synced and self.segments and self._failure is None:
            # Whatever the page cache still holds counts only once it is on the disk.
            self._dirty_files.extend(
                segment.log_slot.path for segment in self.segments if segment.next_offset > self.flushed_offset
            )
            self.request_sync()

    def adopt_topic_id(self, topic_id: bytes) -> None:
        """Give a log its topic id, when a crash has lost the file that held it. OSError when it cannot be written."""
        self.topic_id = topic_id
        if self.segments:
            self._write_topic_id()
            self.request_sync()

    def producers(self) -> list[ProducerInfo]:
        """The producers this log remembers."""
        entries = self.producer_states.entries.values() if self.producer_states is not None else ()
        return [_info(entry) for entry in entries]

    def open_transactions(self) -> list[OpenTransaction]:
        """The transactions that hold up the last stable offset, oldest first."""
        if self.producer_states is None:
            return []
        entries = self.producer_states.entries
        return [
            OpenTransaction(producer_id, entries[producer_id].epoch, first, entries[producer_id].timestamp)
            for first, producer_id in self.producer_states.open.items()
        ]

    def producer(self, producer_id: int) -> ProducerInfo | None:
        """What this log remembers of a producer."""
        entry = self.producer_states.entries.get(producer_id) if self.producer_states is not None else None
        return _info(entry) if entry is not None else None

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self.producer_states.entries.get(producer_id) if self.producer_states is not None else None
        return entry is not None and entry.transaction_start >= 0 and entry.epoch == producer_epoch

    def begin_verification(self, producer_id: int, producer_epoch: int) -> int | None:
        """A token to hand to `append` once the coordinator has confirmed the transaction; None when one is open."""
        return self._producers_here().begin_verification(producer_id, producer_epoch)

    def check_verification(self, producer_id: int, token: int) -> None:
        """Raises KafkaError when a marker came after the token was given; `append` checks the same for clients."""
        self._producers_here().check_verification(producer_id, token)


def _info(entry: ProducerEntry) -> ProducerInfo:
    return ProducerInfo(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.timestamp,
        entry.coordinator_epoch,
        entry.transaction_start,
    )
