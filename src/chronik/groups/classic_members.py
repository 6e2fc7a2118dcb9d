"""Members of a classic group, and what they agree on: protocol selection, leaders, static identities. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from chronik.groups.effects import Ticket
from chronik.protocol.codec import DecodeError, decode
from chronik.protocol.messages.internal_consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL = "consumer"
NEWEST_SUBSCRIPTION = 3

Protocols = Sequence[tuple[str, bytes]]


class Member:
    """One member. It is alive until `session_deadline`, unless it waits for an answer (Rule 6)."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_ticket",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.join_ticket: Ticket = None
        self.sync_ticket: Ticket = None
        self.is_new = False
        self.session_deadline = 0

    @property
    def waits(self) -> bool:
        """Whether an answer is owed that keeps the member alive (Rule 6)."""
        if self.is_new:
            return False
        return self.join_ticket is not None or self.sync_ticket is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent for a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


def supports(members: Iterable[Member], offered: Protocols) -> bool:
    """Whether at least one of the offered protocols is known to all members."""
    common = {name for name, _ in offered}
    for member in members:
        common &= {name for name, _ in member.protocols}
    return bool(common)


def choose_protocol(members: Sequence[Member]) -> str:
    """Every member votes for the first of its protocols that all support; most votes win, then the first named."""
    common = {name for name, _ in members[0].protocols}
    for member in members[1:]:
        common &= {name for name, _ in member.protocols}
    votes = Counter(next(name for name, _ in member.protocols if name in common) for member in members)
    return votes.most_common(1)[0][0]


def subscribed_topics(members: Iterable[Member], protocol: str | None) -> frozenset[str] | None:
    """The topics that consumers subscribe to; None when what they sent is not a consumer's subscription."""
    topics: set[str] = set()
    for member in members:
        data = member.metadata(protocol)
        if len(data) < 2:
            return None
        version = min(max(int.from_bytes(data[:2], "big", signed=True), 0), NEWEST_SUBSCRIPTION)
        try:
            subscription = decode(ConsumerProtocolSubscription, version, memoryview(data)[2:], allow_trailing=True)
        except DecodeError:
            return None
        topics.update(subscription.topics)
    return frozenset(topics)
