"""The records of `__consumer_offsets`, in Kafka's formats and in the versions that Kafka 4 writes.

A key begins with an int16 that says what the record is, a value with an int16 that is its version. A record without a
value is a tombstone. What this version does not know is skipped by whoever reads.
"""

from __future__ import annotations

from chronik.coordination.log_writer import RawRecord
from chronik.protocol.codec import UnsupportedVersion, decode, encode
from chronik.protocol.messages.internal_consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from chronik.protocol.messages.internal_groups import GroupMetadataKey, GroupMetadataValue
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue
from chronik.protocol.wire import Message

OFFSET_KEY, GROUP_KEY = 1, 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3

_KINDS: dict[int, tuple[type[Message], type[Message]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    OFFSET_KEY: (OffsetCommitKey, OffsetCommitValue),
    GROUP_KEY: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}
_NUMBERS = {key: number for number, (key, _) in _KINDS.items()}
_WRITTEN_VERSIONS: dict[type[Message], int] = {
    OffsetCommitValue: OFFSET_VALUE_VERSION,
    GroupMetadataValue: GROUP_VALUE_VERSION,
}


def raw(key: Message, value: Message | None) -> RawRecord:
    """A record as bytes; without a value it is a tombstone."""
    number = _NUMBERS[type(key)]
    return number.to_bytes(2, "big") + encode(key, number), None if value is None else _value(value)


def _value(value: Message) -> bytes:
    version = _WRITTEN_VERSIONS.get(type(value), 0)
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp >= 0:
        version = OFFSET_VALUE_WITH_EXPIRY  # the only version with a place for it
    return version.to_bytes(2, "big") + encode(value, version)


def parsed(key: bytes | None, value: bytes | None) -> tuple[Message, Message | None] | None:
    """Key and value of a record; None for kinds and versions of a later time. Raises DecodeError for damage."""
    if key is None or len(key) < 2:
        return None
    number = int.from_bytes(key[:2], "big", signed=True)
    kind = _KINDS.get(number)
    if kind is None:
        return None
    read_key = decode(kind[0], number, memoryview(key)[2:])
    if value is None:
        return read_key, None
    try:
        return read_key, decode(kind[1], int.from_bytes(value[:2], "big", signed=True), memoryview(value)[2:])
    except UnsupportedVersion:
        return None
