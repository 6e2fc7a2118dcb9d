"""Every change the cluster can agree on, one struct per command, and their bytes in the Raft log.

Rules, so that a log written today is read for ever:
1. An entry is one format byte, then a msgpack map whose field `c` names the command.
2. A command is never removed or renamed, a field never changes its meaning. A new field has a default that means what
   its absence meant; it is left out of the bytes while it has that default, so that older nodes read them.
3. `LEVELS` says from which cluster feature level on a command may be proposed. Bytes that this version cannot read
   completely come from a newer one, and raise `UnknownCommand`: the node stops rather than guess.
4. Whatever is chosen (topic ids, assignments, defaults to append to) is chosen by the proposer and carried here;
   applying draws on nothing but the image and the command.

What commands do is in `image` and the modules beside it.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from chronik.metadata.model import CLUSTER_LEVEL, UNSET_EPOCH, BrokerStatus, ResourceType

FORMAT = 1
CONTROLLER = 0  # proposes in place of a broker id where the controller itself decides
MAX_CHANGES_PER_COMMAND = 1000  # keeps applying one entry well under 20 ms
MAX_COMMANDS_PER_BATCH = 250
MAX_PARTITIONS_PER_COMMAND = 10_000
MAX_ENTRY_BYTES = 8 * 1024 * 1024
SUPPORTED_LEVEL = 1  # the highest cluster feature level this version can take part in
SUPPORTED_FEATURES = {CLUSTER_LEVEL: (1, SUPPORTED_LEVEL), "group.version": (0, 1), "transaction.version": (0, 2)}
"""Lowest and highest level of every feature, as a broker of this version registers them."""


class UnknownCommand(Exception):
    """An entry this version cannot read: the node must stop applying, and be upgraded."""


class ConfigOperation(IntEnum):
    """Kafka's codes of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Command(msgspec.Struct, frozen=True, tag_field="c", omit_defaults=True, forbid_unknown_fields=True):
    """What all commands share: a map on the wire, named by its tag."""


class _Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One line of a list command: an array on the wire, because there are thousands of them."""


class RegisterBroker(_Command, frozen=True, tag="register_broker"):
    """A broker says who and where it is. `seen_epoch` is the registration of this id that the proposer knew of:
    a delayed registration of an older incarnation does not know the newer one, and is refused."""

    node_id: int
    incarnation: bytes
    host: str
    port: int
    peer_host: str = ""
    peer_port: int = 0
    directory_id: bytes = b""
    rack: str | None = None
    host_name: str = ""
    features: dict[str, tuple[int, int]] = {}
    seen_epoch: int = UNSET_EPOCH
    http: str = ""
    software: str = ""


class UpdateBrokerStatus(_Command, frozen=True, tag="update_broker_status"):
    """Fences, unfences or drains. `epoch` names the registration it is about; `maintenance` changes the wish."""

    node_id: int
    status: BrokerStatus
    epoch: int = UNSET_EPOCH
    maintenance: bool | None = None
    reason: str = ""


class RemoveBroker(_Command, frozen=True, tag="remove_broker"):
    """Forgets a registration. A broker that is still alive registers again."""

    node_id: int
    epoch: int = UNSET_EPOCH


class AddNode(_Command, frozen=True, tag="add_node"):
    """Asks for a node, known by its data folder, to become a voter."""

    node_id: int
    directory_id: bytes
    peer_host: str
    peer_port: int


class ConfirmNode(_Command, frozen=True, tag="confirm_node"):
    """The Raft group has taken in, or let go of, the node as it was asked to."""

    node_id: int
    directory_id: bytes


class RemoveNode(_Command, frozen=True, tag="remove_node"):
    """Asks for a node to leave the Raft group for good."""

    node_id: int


class CreateTopic(_Command, frozen=True, tag="create_topic"):
    """A new topic with the id and the replicas (one list per partition) that the proposer chose."""

    name: str
    topic_id: bytes
    assignments: tuple[tuple[int, ...], ...]
    configs: dict[str, str] = {}


class DeleteTopic(_Command, frozen=True, tag="delete_topic"):
    """Deletes by id, so that a topic created again under the same name is never hit."""

    topic_id: bytes


class AddPartitions(_Command, frozen=True, tag="add_partitions"):
    """Appends partitions `first`, `first + 1`, …; refused when the topic has grown otherwise in the meantime."""

    topic_id: bytes
    first: int
    assignments: tuple[tuple[int, ...], ...]


class Reassignment(_Item, frozen=True):
    """The replicas a partition shall have; None cancels the reassignment that is under way."""

    topic_id: bytes
    partition: int
    target: tuple[int, ...] | None
    partition_epoch: int = UNSET_EPOCH


class AssignPartition(_Command, frozen=True, tag="assign_partition"):
    """Starts, changes or cancels reassignments."""

    changes: list[Reassignment]


class FinishedAssignment(_Item, frozen=True):
    """A reassignment whose new replicas are all in sync."""

    topic_id: bytes
    partition: int
    partition_epoch: int


class FinishAssignment(_Command, frozen=True, tag="finish_assignment"):
    """Drops the replicas that reassignments remove, once those they add are in sync."""

    changes: list[FinishedAssignment]


class LeaderChange(_Item, frozen=True):
    """A partition's next leader (-1: none). `isr` may shrink with it; an unclean election makes it the leader alone."""

    topic_id: bytes
    partition: int
    leader: int
    partition_epoch: int
    isr: tuple[int, ...] | None = None
    unclean: bool = False


class SetPartitionLeader(_Command, frozen=True, tag="set_partition_leader"):
    """The controller's elections."""

    changes: list[LeaderChange]


class IsrChange(_Item, frozen=True):
    """An ISR as its leader sees it. `epochs`, when given, are the registrations of the members, in the same order:
    a member that registered again since then is not the replica that caught up."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    epochs: tuple[int, ...] = ()


class UpdateIsr(_Command, frozen=True, tag="update_isr"):
    """ISR changes of the partitions that `node_id` leads; `CONTROLLER` only ever shrinks them."""

    node_id: int
    changes: list[IsrChange]
    broker_epoch: int = UNSET_EPOCH


class ConfigChange(_Item, frozen=True):
    """One operation. `default` is what APPEND and SUBTRACT start from when nothing is set."""

    operation: ConfigOperation
    name: str
    value: str | None = None
    default: str = ""


class SetConfig(_Command, frozen=True, tag="set_config"):
    """Changes the configs of a resource in one step; `replace` first forgets all that is set (AlterConfigs)."""

    resource_type: ResourceType
    resource_name: str
    changes: list[ConfigChange]
    replace: bool = False


class AllocateProducerIds(_Command, frozen=True, tag="allocate_producer_ids"):
    """Takes a block of producer ids that nobody else will ever get."""

    node_id: int
    count: int
    broker_epoch: int = UNSET_EPOCH


class SetClusterId(_Command, frozen=True, tag="set_cluster_id"):
    """Names the cluster; the first one holds for ever."""

    cluster_id: str


class SetFeatureLevel(_Command, frozen=True, tag="set_feature_level"):
    """Raises a feature, when every registered broker can; `downgrade` allows lowering what is not the cluster level."""

    name: str
    level: int
    downgrade: bool = False


Single = (
    RegisterBroker
    | UpdateBrokerStatus
    | RemoveBroker
    | AddNode
    | ConfirmNode
    | RemoveNode
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | AssignPartition
    | FinishAssignment
    | SetPartitionLeader
    | UpdateIsr
    | SetConfig
    | AllocateProducerIds
    | SetClusterId
    | SetFeatureLevel
)


class Batch(_Command, frozen=True, tag="batch"):
    """Several commands in one entry, each applied by itself; its result's value is the list of their results."""

    commands: list[Single]


Command = Single | Batch

LEVELS: dict[type[Command], int] = {}
"""Commands that came after level 1, with the cluster feature level that allows them."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_PREFIX = bytes([FORMAT])


def encode(command: Command) -> bytes:
    """The bytes of an entry."""
    return _PREFIX + _encoder.encode(command)


def decode(data: bytes | memoryview) -> Command:
    """The command in an entry; raises UnknownCommand where a newer version wrote it."""
    if not len(data) or data[0] != FORMAT:
        found = data[0] if len(data) else "nothing"
        raise UnknownCommand(
            f"metadata entry has format {found}, this version reads format {FORMAT}; upgrade this node"
        )
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise UnknownCommand(f"metadata entry cannot be read by this version ({error}); upgrade this node") from error


def required_level(command: Command) -> int:
    """The cluster feature level from which this command may be proposed."""
    if isinstance(command, Batch):
        return max((LEVELS.get(type(inner), 1) for inner in command.commands), default=1)
    return LEVELS.get(type(command), 1)


def oversize(command: Command) -> str | None:
    """Why a proposal is larger than one entry may be, or None."""
    if isinstance(command, Batch):
        if len(command.commands) > MAX_COMMANDS_PER_BATCH:
            return f"a batch holds at most {MAX_COMMANDS_PER_BATCH} commands, this one has {len(command.commands)}"
        return next(filter(None, map(oversize, command.commands)), None)
    if isinstance(command, AssignPartition | FinishAssignment | SetPartitionLeader | UpdateIsr | SetConfig):
        if len(command.changes) > MAX_CHANGES_PER_COMMAND:
            return f"a command holds at most {MAX_CHANGES_PER_COMMAND} changes, this one has {len(command.changes)}"
    elif isinstance(command, CreateTopic | AddPartitions) and len(command.assignments) > MAX_PARTITIONS_PER_COMMAND:
        return f"at most {MAX_PARTITIONS_PER_COMMAND} partitions can be created at once"
    return None
