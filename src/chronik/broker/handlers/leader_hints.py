"""Where a client that asked the wrong node should go instead: the leader and its address, as the image knows them.

Produce (v10+) and Fetch (v12+, addresses from v16) carry these hints, so that a client finds the new leader without
asking for metadata first (KIP-951).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from chronik.broker.context import Services
    from chronik.metadata.image import MetadataImage
    from chronik.metadata.model import BrokerInfo

OUT_OF_TOUCH_S = 1.0
"""A node that cannot reach the controller still believes that it leads, and so does a client that knows no other node:
it would ask here for ever. After this long without a lease it is answered and sent away, to ask somewhere else."""

_ABOUT_LEADERSHIP = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def is_about_leadership(code: ErrorCode) -> bool:
    """Whether an error means that somebody else leads the partition."""
    return code in _ABOUT_LEADERSHIP


def is_out_of_touch(services: Services) -> bool:
    """Whether this node has been without a lease for so long that its clients should ask elsewhere."""
    return services.replicas.lease.lapsed_for_s() > OUT_OF_TOUCH_S


def current_leader(image: MetadataImage, topic: str, partition: int) -> tuple[int, int, BrokerInfo | None] | None:
    """Leader id, leader epoch, and the leader's registration when it is alive; None for an unknown partition."""
    info = image.partition(topic, partition)
    if info is None:
        return None
    leader = image.alive_leader(info)
    return leader, info.leader_epoch, image.brokers.get(leader)
