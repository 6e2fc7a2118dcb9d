"""What a follower and a leader say to each other on the `data` connection: Fetch, as two nodes of one version need it.

The semantics are Kafka's Fetch with incremental sessions: a follower names each partition once with its leader epoch,
its end offset and the epoch of its last record, later only what changed; an answer holds only partitions with news, and
a diverging epoch where a log must be cut. Beyond Kafka's, a follower says how far it has *synced*, and may say so while
its long poll waits. Partitions are named by slots, numbers that a follower draws and never uses twice in a session.

A request is one msgpack array. An answer is the length of its head (4 bytes), the head (a msgpack array), and then the
record batches of the partitions in the head's order, so that they leave as they were read and arrive as one buffer.
A field may be added at the end of a struct with a default; nothing else ever changes without a new kind of request.
"""

from __future__ import annotations

import msgspec

from chronik.replication.replica_state import NO_EPOCH, UNKNOWN_OFFSET

FETCH = "replica.fetch"  # waits for data
REPORT = "replica.report"  # carries the same news, and is answered at once

MAX_ADDED_PER_REQUEST = 1000  # keeps one request well under 20 ms of work at the leader
MAX_PROGRESS_PER_REQUEST = 4000
MAX_WAIT_MS = 500
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
MAX_PARTITION_BYTES = 1024 * 1024
MAX_RESULTS_PER_RESPONSE = 4000

Buffer = bytes | bytearray | memoryview


class Added(msgspec.Struct, array_like=True, gc=False):
    """A partition that the follower starts to fetch, or starts over with after it cut its log."""

    slot: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    fetch_offset: int
    synced_offset: int
    last_epoch: int = NO_EPOCH
    log_start_offset: int = 0


class Progress(msgspec.Struct, array_like=True, gc=False):
    """How far the follower's log reaches now, how far of it is synced, and where it starts."""

    slot: int
    fetch_offset: int
    synced_offset: int
    log_start_offset: int = UNKNOWN_OFFSET


class FetchRequest(msgspec.Struct, array_like=True):
    """`sequence` counts every request of the session from 0; `registration` is the follower's broker epoch."""

    session: int
    sequence: int
    registration: int
    max_wait_ms: int = MAX_WAIT_MS
    max_bytes: int = MAX_RESPONSE_BYTES
    added: list[Added] = []
    progress: list[Progress] = []
    removed: list[int] = []


class PartitionResult(msgspec.Struct, array_like=True, gc=False):
    """News of one partition. `size` bytes of batches follow the head; an error ends the slot."""

    slot: int
    error: int = 0
    high_watermark: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    size: int = 0
    diverging_epoch: int = NO_EPOCH
    diverging_end: int = UNKNOWN_OFFSET
    end_offset: int = UNKNOWN_OFFSET


class FetchResponse(msgspec.Struct, array_like=True):
    """`session_error` tells the follower to start a new session."""

    session_error: bool = False
    results: list[PartitionResult] = []


class MalformedFetch(Exception):
    """A peer sent what cannot be read: another version of this protocol, or damage."""


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(FetchRequest)
_response_decoder = msgspec.msgpack.Decoder(FetchResponse)


def encode_request(request: FetchRequest) -> bytes:
    return _encoder.encode(request)


def decode_request(payload: Buffer) -> FetchRequest:
    try:
        return _request_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise MalformedFetch(f"a fetch from a follower cannot be read: {error}") from error


def encode_response(response: FetchResponse, records: list[Buffer]) -> list[Buffer]:
    """The buffers of an answer; `records` are in the order of those results that have a size."""
    head = _encoder.encode(response)
    return [len(head).to_bytes(4, "big") + head, *records]


def decode_response(payload: Buffer) -> tuple[FetchResponse, list[memoryview]]:
    """The head, and for each of its results the records, as views into the payload."""
    view = memoryview(payload)
    head_end = 4 + int.from_bytes(view[:4], "big")
    if len(view) < 4 or head_end > len(view):
        raise MalformedFetch(f"an answer to a fetch of {len(view)} bytes ends within its head")
    try:
        response = _response_decoder.decode(view[4:head_end])
    except msgspec.DecodeError as error:
        raise MalformedFetch(f"an answer to a fetch cannot be read: {error}") from error
    records: list[memoryview] = []
    position = head_end
    for result in response.results:
        records.append(view[position : position + result.size])
        position += result.size
    if position != len(view):
        raise MalformedFetch(f"an answer to a fetch has {len(view)} bytes and speaks of {position}")
    return response, records
