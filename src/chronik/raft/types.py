"""The vocabulary of consensus: log entries, durable state, membership, messages between nodes, and `Ready`.

Everything here is plain data. What the data means is decided in `core.py`; how it reaches a disk or a socket is
decided in `storage.py`, `transport.py` and `driver.py`.

Structs that are stored or sent are arrays on the wire (`array_like`). They may grow only at the end, and only by fields
with a default: an older reader skips what it does not know, a newer reader fills in what is missing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

NO_NODE = 0
"""The id that no node has: "no leader", "no vote"."""

DIRECTORY_ID_BYTES = 16
UNKNOWN_DIRECTORY = bytes(DIRECTORY_ID_BYTES)
"""A directory id that has not been learned yet; it matches any (see `configuration.py` for the window this opens)."""


class EntryKind(IntEnum):
    """What an entry is for. Only DATA reaches the state machine."""

    DATA = 0
    NOOP = 1
    CONFIGURATION = 2


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One slot of the replicated log. `data` is opaque, except for CONFIGURATION: an encoded `Configuration`."""

    term: int
    index: int
    kind: EntryKind = EntryKind.DATA
    data: bytes = b""


class HardState(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a node must remember over a crash. `commit` may lag behind after a crash; term and vote may not."""

    term: int = 0
    vote: int = NO_NODE
    commit: int = 0
    vote_directory_id: bytes = UNKNOWN_DIRECTORY


class Member(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of the group: who it is (its id, and the directory id made with its data folder) and its peer address."""

    node_id: int
    directory_id: bytes = UNKNOWN_DIRECTORY
    host: str = ""
    port: int = 0


class Configuration(msgspec.Struct, array_like=True, frozen=True):
    """The members of the group, by node id. A node is in at most one of the two. The dicts are never mutated."""

    voters: dict[int, Member] = {}
    observers: dict[int, Member] = {}


class SnapshotMeta(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot by reference: the log through `index` (of `term`) is folded into it; `configuration` as of `index`.

    The bytes never pass through the core. `size` and `checksum` belong to the storage; the core only carries them.
    """

    index: int = 0
    term: int = 0
    configuration: Configuration = Configuration()
    size: int = 0
    checksum: int = 0


class ChangeKind(IntEnum):
    """A step of membership. One at a time, and each moves at most one voter."""

    ADD_VOTER = 0
    REMOVE_VOTER = 1
    ADD_OBSERVER = 2
    REMOVE_OBSERVER = 3
    DEMOTE_VOTER = 4
    UPDATE_ADDRESS = 5


class ConfigurationChange(msgspec.Struct, array_like=True, frozen=True):
    """A wish to change the membership. For removals only `member.node_id` (and its directory id, if set) matter."""

    kind: ChangeKind
    member: Member


# --- messages ---------------------------------------------------------------------------------------------------------
# Every message has source, target and term first, in this order. `directory_id` is always that of the sender.


class VoteRequest(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A candidate asks for a vote; with `pre` it only asks whether it would get one, and nobody's term moves.

    `target_directory_id` is the directory the candidate believes the receiver to have: a receiver that has another one
    has lost its memory since, and never votes. `transfer` marks an election the old leader asked for: no lease holds.
    """

    source: int
    target: int
    term: int
    directory_id: bytes
    target_directory_id: bytes
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteResponse(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The answer. For a granted pre-vote `term` is the term asked for, otherwise the term of the answering node."""

    source: int
    target: int
    term: int
    directory_id: bytes
    granted: bool
    pre: bool = False


class Append(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The leader sends entries that follow (`previous_index`, `previous_term`); empty to probe."""

    source: int
    target: int
    term: int
    previous_index: int
    previous_term: int
    commit: int
    entries: list[Entry]


class AppendResponse(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Accepted: the sender has stored, durably, everything through `index`. Rejected: it lacks `index` (the
    `previous_index` that was asked about), and (`hint_index`, `hint_term`) is the last place where it might agree."""

    source: int
    target: int
    term: int
    directory_id: bytes
    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """The leader is alive. `round` is echoed: a quorum of echoes proves leadership as of the start of the round.

    `commit` is for the data folder `target_directory_id`, which is known to agree that far; another one knows better
    than to believe it.
    """

    source: int
    target: int
    term: int
    target_directory_id: bytes
    commit: int
    round: int = 0


class HeartbeatResponse(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The echo of a heartbeat."""

    source: int
    target: int
    term: int
    directory_id: bytes
    round: int = 0


class CommitNotice(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """The commit index moved and there is nothing else to say. Not answered; a lost one is made good by the next
    append or heartbeat. `commit` is for the data folder `target_directory_id`, as in `Heartbeat`."""

    source: int
    target: int
    term: int
    target_directory_id: bytes
    commit: int


class InstallSnapshot(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The entries the receiver needs are folded away: fetch this snapshot from the sender (see `SnapshotFetch`)."""

    source: int
    target: int
    term: int
    snapshot: SnapshotMeta


class TimeoutNow(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """The leader hands over: campaign at once."""

    source: int
    target: int
    term: int


Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | CommitNotice
    | InstallSnapshot
    | TimeoutNow
)


# --- the bytes of a snapshot, moved by the driver on the data channel -------------------------------------------------


class SnapshotChunkRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A follower asks the leader for a piece of the snapshot (`index`, `term`)."""

    index: int
    term: int
    offset: int
    max_bytes: int


class SnapshotChunk(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The piece. `available` is false when the sender no longer keeps that snapshot: give up, a newer one will come."""

    offset: int
    total: int
    data: bytes
    available: bool = True


# --- what the core asks of its driver ---------------------------------------------------------------------------------


class SnapshotFetch(msgspec.Struct, frozen=True):
    """Fetch the bytes of `snapshot` from node `source`, store them aside durably, then call
    `RaftCore.snapshot_fetched(snapshot)`, or `RaftCore.snapshot_fetch_failed(snapshot)`."""

    source: int
    snapshot: SnapshotMeta


class ReadState(msgspec.Struct, frozen=True, gc=False):
    """The read registered under `context` may be served once this node has applied through `index`."""

    context: int
    index: int


class Ready(msgspec.Struct):
    """Work for the driver, in this order:

    1. `messages`: send at any time, also before anything is stored.
    2. Persist `snapshot` (install it: replace the log), then `entries` (an entry replaces everything stored at or after
       its index), then `hard_state`. Sync if `must_sync`; a hard state whose commit alone moved need not be synced.
    3. `durable_messages`: send only after 2 is done. They are promises.
    4. Restore the state machine from `snapshot`; apply `committed`, in order. All of it is already stored here, and
       follows the snapshot. Entries of other kinds than DATA have nothing to apply, but count as applied.
    5. `RaftCore.advance(ready)`.

    `reads` may be answered once applied through their index. `fetch` starts a transfer in the background, and ends one
    that is under way.
    """

    hard_state: HardState | None
    entries: list[Entry]
    snapshot: SnapshotMeta | None
    messages: list[Message]
    durable_messages: list[Message]
    committed: list[Entry]
    reads: list[ReadState]
    fetch: SnapshotFetch | None
    must_sync: bool


# --- the wire ---------------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(Message)
_configuration_decoder = msgspec.msgpack.Decoder(Configuration)


def encode_message(message: Message) -> bytes:
    """The bytes of one message, without framing."""
    return _encoder.encode(message)


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """The message in `data`; raises `msgspec.DecodeError` (or its subclass `ValidationError`) on anything else."""
    message: Message = _message_decoder.decode(data)
    return message


def encode_configuration(configuration: Configuration) -> bytes:
    """The `data` of a CONFIGURATION entry."""
    return _encoder.encode(configuration)


def decode_configuration(data: bytes | bytearray | memoryview) -> Configuration:
    """The configuration in the `data` of a CONFIGURATION entry."""
    return _configuration_decoder.decode(data)
