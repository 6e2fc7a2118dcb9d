"""The things the cluster knows about: brokers, nodes, topics, partitions; and the outcome of a command.

Every value here is immutable, so a reader may keep one as long as it likes, and a snapshot of the whole image is a
shallow copy. The same structs are what a snapshot stores: a new field goes at the end, with a default, and nothing is
ever removed or reordered. How values change is in `brokers`, `topics`, `partitions` and `settings` beside this file.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from chronik.protocol.errors import ErrorCode, KafkaError

NO_LEADER = -1
UNSET_EPOCH = -1
ZERO_ID = bytes(16)
CLUSTER_DEFAULT = ""  # the name of the broker resource that stands for all brokers, as in Kafka
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
CLUSTER_LEVEL = "chronik.version"  # the feature whose level says which commands may be proposed

_INTERNED_LIMIT = 4096
_interned: dict[tuple[int, ...], tuple[int, ...]] = {}


def intern_ids(ids: tuple[int, ...]) -> tuple[int, ...]:
    """One shared tuple for equal replica lists: thousands of partitions use a handful of them."""
    known = _interned.get(ids)
    if known is None:
        if len(_interned) >= _INTERNED_LIMIT:
            _interned.clear()
        _interned[ids] = known = ids
    return known


class BrokerStatus(IntEnum):
    """OFFLINE serves nothing; MAINTENANCE is alive but is given no new replicas and leads only as a last resort."""

    OFFLINE = 0
    ONLINE = 1
    MAINTENANCE = 2


class NodeState(IntEnum):
    """Where a node stands on its way into or out of the Raft group, as operators asked for it."""

    JOINING = 0
    MEMBER = 1
    LEAVING = 2
    REMOVED = 3


class ResourceType(IntEnum):
    """Kafka's codes for the resources that carry configs."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class BrokerInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A registered broker. `epoch` is the log index of its registration; `maintenance` is the operator's wish;
    `data_lost` holds from a registration with another data folder until the broker is alive again."""

    node_id: int
    host: str
    port: int
    peer_host: str
    peer_port: int
    rack: str | None
    host_name: str
    incarnation: bytes
    directory_id: bytes
    epoch: int
    status: BrokerStatus
    features: dict[str, tuple[int, int]]
    maintenance: bool = False
    http: str = ""
    software: str = ""
    data_lost: bool = False

    @property
    def alive(self) -> bool:
        return self.status != BrokerStatus.OFFLINE

    @property
    def online(self) -> bool:
        return self.status == BrokerStatus.ONLINE


class NodeInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node whose membership of the Raft group was changed by a command; first voters appear only when changed."""

    node_id: int
    directory_id: bytes
    peer_host: str
    peer_port: int
    state: NodeState


class PartitionInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The replicated state of one partition. During a reassignment `replicas` is the target, then what is removed."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that remain when a reassignment is over."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A topic, its partitions in order, and the configs that were set on it."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionInfo, ...]
    configs: dict[str, str] = {}

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class Result(msgspec.Struct, frozen=True):
    """What applying a command came to. A command that no longer makes sense is not `ok` and changed nothing."""

    ok: bool = True
    error: ErrorCode = ErrorCode.NONE
    reason: str = ""
    value: object = None

    def raise_for_error(self) -> None:
        """Turns a refusal into the protocol error a client is answered with."""
        if not self.ok:
            raise KafkaError(self.error, self.reason)


def done(value: object = None) -> Result:
    return Result(value=value)


def refused(error: ErrorCode, reason: str, value: object = None) -> Result:
    return Result(False, error, reason, value)
