"""One client connection: bytes in, frames to the dispatcher, responses out in the order of their requests.

What lives here: framing, the receive buffers, response order, and every reason to stop reading for a while. What does
not: anything about Kafka's messages (router.py), and who may connect (listener.py).

Theory of operation:

Rule 1  Requests start in the order in which they came, and their responses leave in that order. A response that is
        ready early waits in its slot.
Rule 2  A frame that arrives whole is handled in place, in a receive buffer that all connections share and that the next
        read overwrites. Views into such a frame die when the dispatcher returns; whoever needs them longer copies
        (`owned` tells). A frame that arrives in pieces, or has to wait, gets a buffer of its own and `owned` is true.
        Either way the buffer is writable: record batches are stamped in place.
Rule 3  An idle connection has no buffers at all.
Rule 4  A slot may be exclusive: later requests then start only after it is filled. Work that has already taken effect
        and only waits (a produce waiting for its replicas) takes a plain slot, so that producers can pipeline.
Rule 5  `_held` is the set of reasons not to start the next request. Reading stops only when there is unstarted input
        already, when the client does not read its responses, or when there is no memory for the frame.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from chronik.broker.limits import (
    CORK_BYTES_MAX,
    FRAME_BUFFER_FIRST_BYTES,
    FRAME_BUFFER_GROWTH,
    SCRATCH_BYTES,
    BrokerLimits,
)

if TYPE_CHECKING:
    from chronik.broker.listener import Listener

Buffer = bytes | bytearray | memoryview

_LENGTH = Struct(">i")
_LENGTH_BYTES = 4
_REQUEST_BYTES_MIN = 8
"""API key, version and correlation id: what every request begins with."""

HELD_BY_EXCLUSIVE = 1
HELD_BY_PIPELINE = 2
HELD_BY_READER = 4
HELD_BY_MEMORY = 8
HELD_BY_TURN = 16
HELD_BY_CLOSE = 32


class Dispatcher(Protocol):
    """Who makes calls out of frames; it answers through `respond` or `reserve` of the connection, or not at all."""

    def dispatch(self, connection: Connection, frame: memoryview, owned: bool) -> None: ...


class Slot:
    """The place of one response in the order of its connection."""

    __slots__ = ("_buffers", "_connection", "_exclusive", "filled", "on_abandoned")

    def __init__(self, connection: Connection, exclusive: bool) -> None:
        self._connection = connection
        self._exclusive = exclusive
        self._buffers: Sequence[Buffer] | None = None
        self.filled = False
        self.on_abandoned: Callable[[], None] | None = None

    def fill(self, buffers: Sequence[Buffer] | None) -> None:
        """Put the response in its place; None means that this request gets none."""
        self._buffers = buffers
        self.filled = True
        self.on_abandoned = None
        self._connection.slot_filled(self._exclusive, buffers)

    def take(self) -> Sequence[Buffer] | None:
        buffers, self._buffers = self._buffers, None
        return buffers


class Scratch:
    """The receive buffer that the connections of one loop share (Rule 2)."""

    __slots__ = ("view",)

    def __init__(self, size: int = SCRATCH_BYTES) -> None:
        self.view = memoryview(bytearray(size))


class Connection(asyncio.BufferedProtocol):
    """A client connection; see the rules at the top of this module."""

    __slots__ = (
        "_backlog",
        "_backlog_position",
        "_corked",
        "_corked_bytes",
        "_dispatch",
        "_frame",
        "_frame_charged",
        "_frame_filled",
        "_frame_size",
        "_held",
        "_limits",
        "_listener",
        "_reading",
        "_ready_bytes",
        "_scratch",
        "_slots",
        "_transport",
        "_unread_charged",
        "_working",
        "client_software",
        "frame_bytes_max",
        "last_active",
        "peer_host",
        "peer_port",
        "session",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._dispatch = listener.dispatcher.dispatch
        self._scratch = listener.scratch.view
        self._limits: BrokerLimits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._frame: bytearray | None = None
        self._frame_filled = 0
        self._frame_size = 0  # 0 while the length prefix itself is incomplete
        self._frame_charged = 0
        self._backlog: memoryview | None = None
        self._backlog_position = 0
        self._held = 0
        self._working = False
        self._reading = True
        self._slots: deque[Slot] | None = None
        self._ready_bytes = 0  # of filled slots that wait behind an unfilled one
        self._unread_charged = 0
        self._corked: Sequence[Buffer] | None = None
        self._corked_bytes = 0
        self.frame_bytes_max = listener.limits.frame_bytes_max
        self.last_active = 0.0
        self.peer_host = ""
        self.peer_port = 0
        self.client_software = ""
        self.session: object | None = None  # who authenticated, once something does

    # --- the transport calls these ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_host, self.peer_port = peer[0], peer[1]
        self.last_active = self._listener.loop_time()
        transport.set_write_buffer_limits(self._limits.write_high_water_bytes, self._limits.write_low_water_bytes)
        if not self._listener.admit(self):
            self._held |= HELD_BY_CLOSE
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._held |= HELD_BY_CLOSE
        self._transport = None
        self._listener.memory.forget(self)
        self._drop_frame()
        self._drop_backlog()
        self._release_unread()
        slots, self._slots = self._slots, None
        self._listener.responses.used -= self._ready_bytes
        self._ready_bytes = 0
        if slots is not None:
            for slot in slots:
                if slot.on_abandoned is not None:
                    slot.on_abandoned()
        self._listener.departed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._scratch
        return memoryview(self._frame)[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._listener.loop_time()
        self._listener.metrics.bytes_in += nbytes
        if self._held & HELD_BY_CLOSE:
            return
        if self._frame is None:
            self._work(self._scratch, 0, nbytes, owned=False)
        else:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                self._frame_buffer_full()
                self._settle()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._held |= HELD_BY_READER
        if self._transport is not None and not self._unread_charged:
            self._unread_charged = self._transport.get_write_buffer_size()
            self._listener.responses.used += self._unread_charged
        self._settle()

    def resume_writing(self) -> None:
        self.last_active = self._listener.loop_time()
        self._release_unread()
        self._held &= ~HELD_BY_READER
        self._flush()
        self._resume()

    # --- the dispatcher calls these -----------------------------------------------------------------------------

    def respond(self, buffers: Sequence[Buffer]) -> None:
        """Send the response of the request that was dispatched last."""
        if not self._slots and not self._held & HELD_BY_READER:
            self._write(buffers)
            return
        slot = self.reserve()
        slot.fill(buffers)

    def reserve(self, *, exclusive: bool = False) -> Slot:
        """Take the next place in the order of responses for the request that was dispatched last (Rules 1 and 4)."""
        slot = Slot(self, exclusive)
        if self._slots is None:
            self._slots = deque()
        self._slots.append(slot)
        if exclusive:
            self._held |= HELD_BY_EXCLUSIVE
        if len(self._slots) >= self._limits.requests_in_flight_max:
            self._held |= HELD_BY_PIPELINE
        return slot

    def slot_filled(self, exclusive: bool, buffers: Sequence[Buffer] | None) -> None:
        """A slot of ours got its response."""
        if self._transport is None:
            return
        if buffers is not None:
            size = sum(map(len, buffers))
            self._ready_bytes += size
            self._listener.responses.used += size
        if exclusive:
            self._held &= ~HELD_BY_EXCLUSIVE
        self._flush()
        self._resume()

    def refuse(self, what: str, **details: object) -> None:
        """Close the connection for what the client did, with one rate-limited line that says why."""
        self._listener.refusals.say(what, client=self.peer, **details)
        self.close()

    def close(self) -> None:
        """Read and start nothing more, answer what has been started, then close."""
        self._held |= HELD_BY_CLOSE
        if self._transport is None or self._transport.is_closing():
            return
        if not self._slots:
            self._uncork()
            self._transport.close()
        elif self._reading:
            self._reading = False
            self._transport.pause_reading()

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._held |= HELD_BY_CLOSE
        if self._transport is not None:
            self._transport.abort()

    @property
    def peer(self) -> str:
        """The address of the client, for people."""
        return f"[{self.peer_host}]:{self.peer_port}" if ":" in self.peer_host else f"{self.peer_host}:{self.peer_port}"

    @property
    def socket(self) -> socket.socket | None:
        raw: socket.socket | None = self._transport.get_extra_info("socket") if self._transport is not None else None
        return raw

    @property
    def closed(self) -> bool:
        return bool(self._held & HELD_BY_CLOSE)

    @property
    def in_flight(self) -> int:
        """Requests whose responses have not been written."""
        return len(self._slots) if self._slots else 0

    @property
    def frame_started(self) -> bool:
        """Whether a part of a frame has come and the rest has not."""
        return self._frame is not None and not self._held

    @property
    def waits_for_reader(self) -> bool:
        """Whether the client has stopped reading its responses."""
        return bool(self._held & HELD_BY_READER)

    # --- request memory -----------------------------------------------------------------------------------------

    def memory_granted(self) -> None:
        """Called by the memory account when the bytes asked for in `_grow_frame` have been taken."""
        if self._frame is None or self._held & HELD_BY_CLOSE:
            return
        self._held &= ~HELD_BY_MEMORY
        target = self._next_frame_capacity()
        self._frame_charged = target
        self._enlarge_frame(target)
        self._resume()

    # --- frames -------------------------------------------------------------------------------------------------

    def _work(self, view: memoryview, position: int, end: int, *, owned: bool) -> None:
        """Start the requests in `view[position:end]` for as long as nothing holds them back; keep the rest."""
        self._working = True
        try:
            position = self._start_requests(view, position, end, owned)
        finally:
            self._working = False
            if self._corked is not None:
                self._uncork()
        if self._held & HELD_BY_CLOSE:
            return
        if position < 0:
            if self._backlog is not None:
                self._drop_backlog()
        elif not owned:
            assert self._backlog is None, "input was read although some was kept already"
            self._backlog = memoryview(bytearray(view[position:end]))
            self._listener.memory.charge(end - position)
        else:
            self._backlog_position = position
        if self._held or not self._reading:
            self._settle()

    def _start_requests(self, view: memoryview, position: int, end: int, owned: bool) -> int:
        """Returns where the first request lies that has to wait, or -1 when none has to."""
        started = 0
        limits = self._limits
        while end - position >= _LENGTH_BYTES:
            size: int = _LENGTH.unpack_from(view, position)[0]
            if not _REQUEST_BYTES_MIN <= size <= self.frame_bytes_max:
                self._refuse_size(size)
                return position
            stop = position + _LENGTH_BYTES + size
            if stop > end:
                break
            if not self._held and (started >= limits.frames_per_turn_max or self._listener.turn.spent()):
                self._held |= HELD_BY_TURN
                self._listener.turn.defer(self._turn_came)
            if self._held:
                return position
            frame = view[position + _LENGTH_BYTES : stop]
            position = stop
            started += 1
            self._dispatch(self, frame, owned)
        if position < end and not self._held & HELD_BY_CLOSE:
            self._begin_frame(view[position:end])
        return -1

    def _begin_frame(self, start: memoryview) -> None:
        """Give a frame that has not arrived whole a buffer of its own."""
        if len(start) < _LENGTH_BYTES:
            self._frame = bytearray(_LENGTH_BYTES)
            self._frame[: len(start)] = start
            self._frame_filled = len(start)
            return
        self._begin_body(_LENGTH.unpack_from(start)[0])
        body = start[_LENGTH_BYTES:]
        self._frame_filled = len(body)
        target = self._next_frame_capacity()
        self._frame = bytearray(target)
        self._frame[: len(body)] = body
        if not self._listener.memory.acquire(self, target):
            # The bytes are here already and bounded by the scratch buffer: hold them, and read no more.
            self._held |= HELD_BY_MEMORY
        else:
            self._frame_charged = target

    def _begin_body(self, size: int) -> None:
        self._frame_size = size
        self._frame_filled = 0

    def _next_frame_capacity(self) -> int:
        return min(self._frame_size, max(FRAME_BUFFER_FIRST_BYTES, FRAME_BUFFER_GROWTH * self._frame_filled))

    def _frame_buffer_full(self) -> None:
        """The buffer is full: with the length prefix, with a part of the frame, or with all of it."""
        assert self._frame is not None
        if self._frame_size == 0:
            size: int = _LENGTH.unpack(self._frame)[0]
            if not _REQUEST_BYTES_MIN <= size <= self.frame_bytes_max:
                self._refuse_size(size)
                return
            self._begin_body(size)
            self._frame = bytearray()
            self._grow_frame()
        elif self._frame_filled < self._frame_size:
            self._grow_frame()
        else:
            self._start_whole_frame()

    def _grow_frame(self) -> None:
        target = self._next_frame_capacity()
        if self._listener.memory.acquire(self, target - self._frame_charged):
            self._frame_charged = target
            self._enlarge_frame(target)
        else:
            self._held |= HELD_BY_MEMORY

    def _enlarge_frame(self, target: int) -> None:
        assert self._frame is not None
        if target > len(self._frame):
            larger = bytearray(target)
            larger[: self._frame_filled] = memoryview(self._frame)[: self._frame_filled]
            self._frame = larger

    def _start_whole_frame(self) -> None:
        """Dispatch the frame in our own buffer, or leave it there while something holds it back."""
        if self._frame is None or self._held:
            return
        frame = memoryview(self._frame)
        self._drop_frame()
        self._working = True
        try:
            self._dispatch(self, frame, True)
        finally:
            self._working = False
            if self._corked is not None:
                self._uncork()

    @property
    def _frame_is_whole(self) -> bool:
        return self._frame is not None and 0 < self._frame_size == self._frame_filled

    def _drop_frame(self) -> None:
        self._frame = None
        self._frame_filled = 0
        self._frame_size = 0
        if self._frame_charged:
            charged, self._frame_charged = self._frame_charged, 0
            self._listener.memory.release(self, charged)

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            size = len(self._backlog)
            self._backlog = None
            self._backlog_position = 0
            self._listener.memory.release(self, size)

    def _refuse_size(self, size: int) -> None:
        self.refuse(
            "closed a connection: the length of a frame is out of bounds; is the client speaking Kafka, without TLS?",
            frame_bytes=size,
            frame_bytes_max=self.frame_bytes_max,
        )

    # --- holding and going on -----------------------------------------------------------------------------------

    def _turn_came(self) -> None:
        self._held &= ~HELD_BY_TURN
        self._resume()

    def _resume(self) -> None:
        """Start what was held back, if nothing holds it any more."""
        if self._working:
            return
        if not self._held and self._backlog is not None:
            self._work(self._backlog, self._backlog_position, len(self._backlog), owned=True)
        if not self._held and self._frame_is_whole:
            self._start_whole_frame()
        self._settle()

    def _settle(self) -> None:
        """Read when there is room for more input, else do not (Rule 5)."""
        if self._transport is None or self._held & HELD_BY_CLOSE or self._working:
            return
        stop = self._held & (HELD_BY_READER | HELD_BY_MEMORY) or self._backlog is not None or self._frame_is_whole
        if stop and self._reading:
            self._reading = False
            self._transport.pause_reading()
        elif not stop and not self._reading:
            self._reading = True
            self._transport.resume_reading()

    # --- responses ----------------------------------------------------------------------------------------------

    def _write(self, buffers: Sequence[Buffer]) -> None:
        """Send now or, while requests are being started, together with the responses of the others."""
        self._corked_bytes += sum(map(len, buffers))
        if self._corked is None:
            self._corked = buffers
        else:
            self._corked = [*self._corked, *buffers]
        if not self._working or self._corked_bytes >= CORK_BYTES_MAX:
            self._uncork()

    def _uncork(self) -> None:
        """One system call for all responses of one read: the client is woken once."""
        buffers, self._corked = self._corked, None
        size, self._corked_bytes = self._corked_bytes, 0
        if buffers is not None and self._transport is not None:
            self._listener.metrics.bytes_out += size
            self._transport.writelines(buffers)

    def _flush(self) -> None:
        """Write the filled slots at the head of the line."""
        slots = self._slots
        while slots and slots[0].filled and not self._held & HELD_BY_READER:
            buffers = slots.popleft().take()
            if buffers is not None:
                size = sum(map(len, buffers))
                self._ready_bytes -= size
                self._listener.responses.used -= size
                self._write(buffers)
        if slots is not None and not slots:
            self._slots = None
            if self._held & HELD_BY_CLOSE:
                self.close()
        crowded = (
            self.in_flight >= self._limits.requests_in_flight_max
            or self._ready_bytes > self._limits.response_backlog_bytes_max
        )
        if crowded:
            self._held |= HELD_BY_PIPELINE
        else:
            self._held &= ~HELD_BY_PIPELINE

    def _release_unread(self) -> None:
        if self._unread_charged:
            self._listener.responses.used -= self._unread_charged
            self._unread_charged = 0
