"""The shards of one internal topic on this node: one for each partition that it leads, loaded when leadership comes,
closed when it goes. What a shard does is its own business; who asks for the wrong one is told what to do here.

A node whose lease has lapsed may have been replaced: what it knows of groups and transactions may be old, members that
it keeps alive may be dead to the new coordinator. It answers for nothing until the lease is renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from chronik.coordination.loader import Loader, Shard, Status
from chronik.coordination.topic_access import InternalTopicAccess, partition_for
from chronik.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from chronik.coordination.log_writer import LogWriter
    from chronik.replication.partition import Partition


class WrittenShard(Shard, Protocol):
    """A shard that writes to its partition."""

    writer: LogWriter


S = TypeVar("S", bound=WrittenShard)


class LedShards(Generic[S]):
    """The shards by the index of their partition."""

    def __init__(
        self, topic: InternalTopicAccess, make: Callable[[Partition], S], close_shard: Callable[[S], None]
    ) -> None:
        self._topic = topic
        self._make = make
        self._close_shard = close_shard
        self._shards: dict[int, S] = {}
        self._loader = Loader()
        self._closed = False

    def leadership(self, partition: Partition, leads: bool) -> None:
        """This node leads a partition of whatever topic from now on, or no longer does."""
        if partition.topic != self._topic.name or self._closed:
            return
        previous = self._shards.pop(partition.index, None)
        if previous is not None:
            self._close_shard(previous)
        if leads:
            shard = self._shards[partition.index] = self._make(partition)
            self._loader.load(shard)

    def close(self) -> None:
        """This node coordinates nothing any more."""
        self._closed = True
        self._loader.close()
        for shard in list(self._shards.values()):
            self._close_shard(shard)
        self._shards.clear()

    def expire_writes(self, now_ms: int) -> None:
        """Tells those who have waited too long for a write."""
        for shard in self._shards.values():
            shard.writer.expire(now_ms)

    def active(self) -> Iterator[S]:
        """Those that answer for what is kept in them."""
        return (shard for shard in self._shards.values() if shard.status is Status.ACTIVE)

    @property
    def are_loading(self) -> bool:
        return any(shard.status is Status.LOADING for shard in self._shards.values())

    def at(self, index: int) -> S | None:
        return self._shards.get(index)

    def of(self, key: str, what: str) -> S:
        """The shard of a key, which errors call `what`. Raises KafkaError when it is not, or not yet, here."""
        partitions = self._topic.partitions
        if self._closed or not partitions:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no coordinator yet; ask FindCoordinator, then try again"
            )
        shard = self._shards.get(partition_for(key, partitions))
        if shard is None or not shard.partition.holds_lease:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"this node does not coordinate {what}; ask FindCoordinator again"
            )
        if shard.status is Status.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the state of {what} is being loaded; try again")
        return shard
