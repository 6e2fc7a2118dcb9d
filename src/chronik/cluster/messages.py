"""What brokers and the controller say to each other over the control connection. Arrays on the wire; a new field goes
at the end, with a default."""

from __future__ import annotations

from enum import IntEnum

import msgspec

HEARTBEAT = "heartbeat"
ELECT_LEADERS = "elect_leaders"
MAX_ELECTIONS_PER_REQUEST = 10_000


class Leaving(IntEnum):
    """Whether a broker is about to stop: NO; it asks for its leaders to be moved; it has stopped acknowledging."""

    NO = 0
    DRAINING = 1
    STOPPED = 2


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """I am alive, I am this registration, and I have applied the metadata so far."""

    node_id: int
    incarnation: bytes
    epoch: int
    applied_index: int
    leaving: Leaving = Leaving.NO


class Verdict(IntEnum):
    """What the controller makes of a heartbeat."""

    ACCEPTED = 0
    NOT_CONTROLLER = 1
    NOT_REGISTERED = 2
    SUPERSEDED = 3


class HeartbeatReply(msgspec.Struct, frozen=True, array_like=True):
    """`lease_s` counts from when the heartbeat was sent; 0 renews nothing. `led` are the partitions that the broker
    leads and that another one could lead."""

    verdict: Verdict
    lease_s: float = 0.0
    controller_id: int = 0
    led: int = 0


class ElectRequest(msgspec.Struct, frozen=True, array_like=True):
    """Elections on demand: of preferred leaders or, where no replica in sync is left, unclean ones."""

    unclean: bool
    partitions: list[tuple[str, int]] | None
    timeout_s: float


class ElectReply(msgspec.Struct, frozen=True, array_like=True):
    """Per partition: topic, number, Kafka error code, message."""

    outcomes: list[tuple[str, int, int, str]]


encode = msgspec.msgpack.Encoder().encode
decode_heartbeat = msgspec.msgpack.Decoder(Heartbeat).decode
decode_heartbeat_reply = msgspec.msgpack.Decoder(HeartbeatReply).decode
decode_elect_request = msgspec.msgpack.Decoder(ElectRequest).decode
decode_elect_reply = msgspec.msgpack.Decoder(ElectReply).decode
