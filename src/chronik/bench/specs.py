"""What a worker process is told to do. Sent to it as one line of JSON."""

from __future__ import annotations

import msgspec


class WorkerSpec(msgspec.Struct, kw_only=True, tag=True):
    """What every worker needs: the cluster, the topic, how long to warm up and how long to measure."""

    bootstrap: str
    topic: str
    number: int = 0
    """Which worker of its kind this is, from 0."""

    workers: int = 1
    """How many of its kind there are."""

    warmup_s: float = 0.0
    duration_s: float = 10.0


class SendSpec(WorkerSpec, kw_only=True, tag="send"):
    """Write messages. `total` ends the load when so many are acknowledged, for filling a topic."""

    message_bytes: int = 1024
    batch_bytes: int = 16_384
    linger_ms: float = 5.0
    acks: int = -1
    idempotent: bool = True
    compression: str = "none"
    in_flight: int = 5
    rate: float | None = None
    stamp: bool = False
    total: int | None = None


class ReadSpec(WorkerSpec, kw_only=True, tag="read"):
    """Read the worker's share of the partitions, from the start over and over, or at the end."""

    from_start: bool = True
    fetch_bytes: int = 1024 * 1024
    max_wait_ms: int = 500
    check_crc: bool = True


class CommitSpec(WorkerSpec, kw_only=True, tag="commit"):
    """Commit offsets for a group of one's own, one commit after the other."""

    group: str


class TransactSpec(WorkerSpec, kw_only=True, tag="transact"):
    """Run transactions one after the other, each with so many messages to one partition."""

    transactional_id: str
    messages: int = 10
    message_bytes: int = 1024


AnySpec = SendSpec | ReadSpec | CommitSpec | TransactSpec
