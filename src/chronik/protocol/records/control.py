"""Control records: what the cluster writes into a log for itself, first of all the markers that end a transaction.

A control batch holds one record. Its key says what it is (version, type), its value depends on that.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.building import build_batch
from chronik.protocol.records.header import NO_LEADER_EPOCH, Buffer
from chronik.protocol.records.reading import Record, read_records

_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    """The second number of a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTransactionMarker(msgspec.Struct, frozen=True):
    """The last word on a producer's transaction in one partition."""

    committed: bool
    coordinator_epoch: int


def control_key(kind: ControlType) -> bytes:
    return _KEY.pack(_VERSION, kind)


def control_type(key: bytes | None) -> ControlType:
    """What a control record is, by its key; UNKNOWN for types of a later time, which readers skip."""
    if key is None or len(key) < _KEY.size:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"a control record has a key of {len(key or b'')} bytes, it needs {_KEY.size}"
        )
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a control record has the impossible version {version}")
    return ControlType(kind) if kind in ControlType._value2member_map_ else ControlType.UNKNOWN


def build_end_transaction_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The control batch that commits or aborts the open transaction of a producer in one partition."""
    key = control_key(ControlType.COMMIT if committed else ControlType.ABORT)
    value = _END_TRANSACTION_VALUE.pack(_VERSION, coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )


def read_end_transaction_marker(batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch, or None when it is a control batch of another kind."""
    records = read_records(batch)
    if len(records) != 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a control batch holds {len(records)} records, it must hold one")
    kind = control_type(records[0].key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = records[0].value or b""
    if len(value) < _END_TRANSACTION_VALUE.size:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"a transaction marker has a value of {len(value)} bytes, it needs {_END_TRANSACTION_VALUE.size}",
        )
    _, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(value)
    return EndTransactionMarker(kind is ControlType.COMMIT, coordinator_epoch)
