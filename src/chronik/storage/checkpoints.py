"""The small text files beside the logs, in Kafka's formats, read and written as a whole.

At the root: `recovery-point-offset-checkpoint`, `replication-offset-checkpoint` (high watermarks),
`log-start-offset-checkpoint`, `cleaner-offset-checkpoint`, each with lines `topic partition offset`. In the folder of a
partition: `leader-epoch-checkpoint` with lines `epoch start_offset`, and `partition.metadata` with the topic id.

A checkpoint that cannot be read is reported and counts as absent: each only saves work, or errs on the safe side.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping

import structlog

from chronik.storage.files import FileSystem, read_whole, write_atomically

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_POINTS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

CHECKPOINT_BYTES_MAX = 64 * 1024 * 1024
"""Room for a quarter of a million partitions with the longest names."""

PARTITION_METADATA_BYTES_MAX = 4096

_VERSION = "0"

PartitionKey = tuple[str, int]

logger = structlog.get_logger()


class BadCheckpoint(ValueError):
    """A checkpoint file does not have the format it should have."""


def format_offsets(offsets: Mapping[PartitionKey, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return f"{_VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def parse_offsets(raw: bytes) -> dict[PartitionKey, int]:
    offsets: dict[PartitionKey, int] = {}
    for line in _entries(raw):
        fields = line.split()
        if len(fields) != 3:
            raise BadCheckpoint(f"the line {line!r} is not 'topic partition offset'")
        topic, partition, offset = fields[0], _number(fields[1], line), _number(fields[2], line)
        offsets[(topic, partition)] = offset
    return offsets


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    lines = [f"{epoch} {start}\n" for epoch, start in entries]
    return f"{_VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def parse_epochs(raw: bytes) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for line in _entries(raw):
        fields = line.split()
        if len(fields) != 2:
            raise BadCheckpoint(f"the line {line!r} is not 'epoch start_offset'")
        entries.append((_number(fields[0], line), _number(fields[1], line)))
    return entries


def format_partition_metadata(topic_id: bytes) -> bytes:
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    return f"version: 0\ntopic_id: {text}".encode()


def parse_partition_metadata(raw: bytes) -> bytes:
    """The topic id in a `partition.metadata` file."""
    fields = dict(line.split(": ", 1) for line in raw.decode("utf-8", "replace").splitlines() if ": " in line)
    if fields.get("version") != "0":
        raise BadCheckpoint(f"version {fields.get('version')!r} is not known, only 0 is")
    text = fields.get("topic_id", "")
    try:
        topic_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise BadCheckpoint(f"the topic id {text!r} is not base64") from error
    if len(topic_id) != 16:
        raise BadCheckpoint(f"the topic id {text!r} does not have 16 bytes")
    return topic_id


def read_offsets(fs: FileSystem, path: str) -> dict[PartitionKey, int]:
    """Offsets in a checkpoint; empty when it is absent or damaged."""
    try:
        raw = read_whole(fs, path, CHECKPOINT_BYTES_MAX)
        return parse_offsets(raw) if raw is not None else {}
    except (ValueError, OSError) as error:
        logger.warning("a checkpoint cannot be read and is ignored, start-up takes longer", path=path, error=str(error))
        return {}


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[PartitionKey, int]) -> None:
    write_atomically(fs, path, format_offsets(offsets))


def read_epochs(fs: FileSystem, path: str) -> list[tuple[int, int]]:
    try:
        raw = read_whole(fs, path, CHECKPOINT_BYTES_MAX)
        return parse_epochs(raw) if raw is not None else []
    except (ValueError, OSError) as error:
        logger.warning("leader epochs cannot be read and are taken from the log", path=path, error=str(error))
        return []


def read_topic_id(fs: FileSystem, path: str) -> bytes | None:
    """The topic id of a partition folder, or None when it is absent or damaged."""
    try:
        raw = read_whole(fs, path, PARTITION_METADATA_BYTES_MAX)
        return parse_partition_metadata(raw) if raw is not None else None
    except (ValueError, OSError) as error:
        logger.warning("the topic id of a partition folder cannot be read", path=path, error=str(error))
        return None


def _entries(raw: bytes) -> list[str]:
    lines = raw.decode("utf-8", "replace").split("\n")
    if lines[0].strip() != _VERSION:
        raise BadCheckpoint(f"version {lines[0].strip()!r} is not known, only {_VERSION} is")
    count = _number(lines[1], lines[1]) if len(lines) > 1 else -1
    entries = [line for line in lines[2:] if line.strip()]
    if count != len(entries):
        raise BadCheckpoint(f"{count} entries are announced, {len(entries)} are there")
    return entries


def _number(text: str, line: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadCheckpoint(f"{text!r} in the line {line!r} is not a number") from error
