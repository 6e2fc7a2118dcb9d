"""Applying what brokers and nodes do: register, go on- and offline, join and leave.

A registration is known by its incarnation (drawn anew by every process) and its epoch (the log index at which it was
applied). The newest registration of an id is the broker; every other process of that id is fenced, because whatever it
proposes or sends carries an epoch that is no longer the broker's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import msgspec

from chronik.metadata.commands import (
    AddNode,
    ConfirmNode,
    RegisterBroker,
    RemoveBroker,
    RemoveNode,
    UpdateBrokerStatus,
)
from chronik.metadata.delta import Delta
from chronik.metadata.model import (
    CLUSTER_LEVEL,
    UNSET_EPOCH,
    BrokerInfo,
    BrokerStatus,
    NodeInfo,
    NodeState,
    ResourceType,
    Result,
    done,
    refused,
)
from chronik.metadata.partitions import end_leadership, trusted_without_data
from chronik.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage


def register_broker(
    image: MetadataImage, command: RegisterBroker, index: int, delta: Delta
) -> Generator[None, None, Result]:
    """Its value is the broker's epoch. A new incarnation leads nothing and is offline until the controller has heard
    from it; the same one only brings its address up to date. The image changes at once, at the end."""
    refusal = _registration_problem(image, command)
    if refusal is not None:
        return refused(*refusal)
    known = image.brokers.get(command.node_id)
    again = known is not None and known.incarnation == command.incarnation
    data_lost = known is not None and (known.data_lost or known.directory_id != command.directory_id)
    broker = BrokerInfo(
        command.node_id,
        command.host,
        command.port,
        command.peer_host,
        command.peer_port,
        command.rack,
        command.host_name,
        command.incarnation,
        command.directory_id,
        known.epoch if known is not None and again else index,
        known.status if known is not None and again else BrokerStatus.OFFLINE,
        command.features,
        known is not None and known.maintenance,
        command.http,
        command.software,
        data_lost,
    )
    ended = (yield from end_leadership(image, command.node_id)) if known is not None and not again else None
    if broker != known:
        image.put_broker(broker, index, delta)
    if ended is not None:
        ended.put(image, index, delta)
    return done(broker.epoch)


def _registration_problem(image: MetadataImage, command: RegisterBroker) -> tuple[ErrorCode, str] | None:
    node_id = command.node_id
    if node_id < 1 or len(command.incarnation) != 16:
        return ErrorCode.INVALID_REGISTRATION, f"Broker {node_id} registered without a valid id and incarnation."
    known = image.brokers.get(node_id)
    if known is not None and known.incarnation != command.incarnation and command.seen_epoch < known.epoch:
        return (
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Broker {node_id} has a registration (epoch {known.epoch}) that this one does not know of.",
        )
    node = image.nodes.get(node_id)
    if node is not None and node.state in (NodeState.LEAVING, NodeState.REMOVED):
        return (
            ErrorCode.INVALID_REGISTRATION,
            f"Node {node_id} was removed from the cluster; start it with --join to add it again.",
        )
    lowest, highest = command.features.get(CLUSTER_LEVEL, (1, 1))
    if not lowest <= image.feature_level <= highest:
        return (
            ErrorCode.UNSUPPORTED_VERSION,
            f"The cluster is at feature level {image.feature_level}, broker {node_id} supports {lowest} to {highest}; "
            "run a version of Chronik that supports it.",
        )
    return None


def update_broker_status(image: MetadataImage, command: UpdateBrokerStatus, index: int, delta: Delta) -> Result:
    """A broker that lost its data comes back only when no partition still holds it to be in sync."""
    known = image.brokers.get(command.node_id)
    refusal = _epoch_problem(known, command.node_id, command.epoch)
    if known is None or refusal is not None:
        return refusal or refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {command.node_id} is not registered.")
    maintenance = known.maintenance if command.maintenance is None else command.maintenance
    if (known.status, known.maintenance) == (command.status, maintenance):
        return done(known.epoch)
    back = not known.alive and command.status != BrokerStatus.OFFLINE
    trusted = trusted_without_data(image, command.node_id) if back and known.data_lost else None
    if trusted is not None:
        return refused(
            ErrorCode.INVALID_REQUEST,
            f"Broker {command.node_id} lost its data and cannot come back while {trusted[0]}-{trusted[1]} "
            "holds it to be in sync.",
        )
    changed = msgspec.structs.replace(
        known, status=command.status, maintenance=maintenance, data_lost=known.data_lost and not back
    )
    image.put_broker(changed, index, delta)
    return done(known.epoch)


def remove_broker(image: MetadataImage, command: RemoveBroker, index: int, delta: Delta) -> Result:
    refusal = _epoch_problem(image.brokers.get(command.node_id), command.node_id, command.epoch)
    if refusal is not None:
        return refusal
    del image.brokers[command.node_id]
    image.brokers_version = image.version = index
    delta.brokers_changed.add(command.node_id)
    key = (ResourceType.BROKER, str(command.node_id))
    if key in image.configs:
        image.put_configs(key, {}, index)
        image.configs_version = index
        delta.configs_changed.add(key)
    return done()


def _epoch_problem(known: BrokerInfo | None, node_id: int, epoch: int) -> Result | None:
    if known is None:
        return refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {node_id} is not registered.")
    if epoch not in (UNSET_EPOCH, known.epoch):
        return refused(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {node_id} has registered again (epoch {known.epoch}) since this was decided (epoch {epoch}).",
        )
    return None


def add_node(image: MetadataImage, command: AddNode, index: int, delta: Delta) -> Result:
    if command.node_id < 1 or len(command.directory_id) != 16:
        return refused(ErrorCode.INVALID_REQUEST, f"Node {command.node_id} was added without a valid id and folder id.")
    known = image.nodes.get(command.node_id)
    wanted = known is not None and known.state in (NodeState.JOINING, NodeState.MEMBER)
    if known is not None and wanted and known.directory_id == command.directory_id:
        state = known.state
    else:
        state = NodeState.JOINING
    _put_node(
        image,
        NodeInfo(command.node_id, command.directory_id, command.peer_host, command.peer_port, state),
        index,
        delta,
    )
    return done(state)


def confirm_node(image: MetadataImage, command: ConfirmNode, index: int, delta: Delta) -> Result:
    known = image.nodes.get(command.node_id)
    if known is None or known.directory_id != command.directory_id:
        return refused(ErrorCode.INVALID_REQUEST, f"Node {command.node_id} is not being added or removed.")
    after = {NodeState.JOINING: NodeState.MEMBER, NodeState.LEAVING: NodeState.REMOVED}.get(known.state, known.state)
    _put_node(image, msgspec.structs.replace(known, state=after), index, delta)
    return done(after)


def remove_node(image: MetadataImage, command: RemoveNode, index: int, delta: Delta) -> Result:
    known = image.nodes.get(command.node_id)
    broker = image.brokers.get(command.node_id)
    if known is not None and known.state in (NodeState.LEAVING, NodeState.REMOVED):
        return done(known.state)
    if known is not None:
        leaving = msgspec.structs.replace(known, state=NodeState.LEAVING)
    elif broker is not None:
        leaving = NodeInfo(command.node_id, broker.directory_id, broker.peer_host, broker.peer_port, NodeState.LEAVING)
    else:
        leaving = NodeInfo(command.node_id, b"", "", 0, NodeState.LEAVING)
    _put_node(image, leaving, index, delta)
    return done(leaving.state)


def _put_node(image: MetadataImage, node: NodeInfo, index: int, delta: Delta) -> None:
    if image.nodes.get(node.node_id) == node:
        return
    image.nodes[node.node_id] = node
    image.version = index
    delta.nodes_changed.add(node.node_id)
