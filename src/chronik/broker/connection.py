"""One client connection: bytes in, frames to the dispatcher, responses out in the order of their requests.

What lives here: framing, the receive buffers, and every reason to stop reading for a while. What does not: the order of
responses (responses.py), Kafka's messages (router.py), and who may connect (listener.py).

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
from typing import TYPE_CHECKING, Protocol, cast

from chronik.broker.frames import LENGTH, LENGTH_BYTES, REQUEST_BYTES_MIN, PartialFrame
from chronik.broker.responses import (
    HELD_BY_CLOSE,
    HELD_BY_EXCLUSIVE,
    HELD_BY_MEMORY,
    HELD_BY_READER,
    HELD_BY_TURN,
    ResponseSender,
)

if TYPE_CHECKING:
    from chronik.broker.listener import Listener
    from chronik.broker.refused_batches import RefusedBatches


class Dispatcher(Protocol):
    """Who makes calls out of frames; it answers through `respond` or `reserve` of the connection, or not at all."""

    def dispatch(self, connection: Connection, frame: memoryview, owned: bool) -> None: ...


class Connection(ResponseSender):
    """A client connection; see the rules at the top of this module."""

    __slots__ = (
        "_backlog",
        "_backlog_position",
        "_dispatch",
        "_exclusive_charged",
        "_frame",
        "_reading",
        "_scratch",
        "frame_bytes_max",
        "peer_host",
        "peer_port",
        "refused_batches",
    )

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._dispatch = listener.dispatcher.dispatch
        self._scratch = listener.scratch.view
        self._frame: PartialFrame | None = None
        self._exclusive_charged = 0  # memory of the frame whose request runs exclusively
        self._backlog: memoryview | None = None
        self._backlog_position = 0
        self._reading = True
        self.frame_bytes_max = listener.limits.frame_bytes_max
        self.peer_host = ""
        self.peer_port = 0
        self.refused_batches: RefusedBatches | None = None  # kept by produce, from the first refusal on

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
        self._release_exclusive()
        self._abandon_responses()
        self._listener.departed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._scratch
        return self._frame.room

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._listener.loop_time()
        self._listener.metrics.bytes_in += nbytes
        if self._held & HELD_BY_CLOSE:
            return
        if self._frame is None:
            self._work(self._scratch, 0, nbytes, owned=False)
        else:
            self._frame.received(nbytes)
            if self._frame.full:
                self._frame_buffer_full(self._frame)
                self._settle()

    def eof_received(self) -> bool:
        return False

    # --- the dispatcher calls these -----------------------------------------------------------------------------

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
    def frame_started(self) -> bool:
        """Whether a part of a frame has come and the rest has not."""
        return self._frame is not None and not self._held

    # --- request memory -----------------------------------------------------------------------------------------

    def memory_granted(self) -> None:
        """Called by the memory account when the bytes asked for in `_pay_for` have been taken."""
        frame = self._frame
        if frame is None or self._held & HELD_BY_CLOSE:
            return
        self._held &= ~HELD_BY_MEMORY
        frame.charged = frame.capacity_wanted()
        frame.grow(frame.charged)
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
        frames_max = self._limits.frames_per_turn_max
        while end - position >= LENGTH_BYTES:
            size: int = LENGTH.unpack_from(view, position)[0]
            if not REQUEST_BYTES_MIN <= size <= self.frame_bytes_max:
                self._refuse_size(size)
                return position
            stop = position + LENGTH_BYTES + size
            if stop > end:
                break
            if not self._held and (started >= frames_max or self._listener.turn.spent()):
                self._wait_for_turn()
            if self._held:
                return position
            frame = view[position + LENGTH_BYTES : stop]
            position = stop
            started += 1
            self._dispatch(self, frame, owned)
        if position < end and not self._held & HELD_BY_CLOSE:
            self._begin_frame(view[position:end])
        return -1

    def _begin_frame(self, start: memoryview) -> None:
        """Give a frame that has not arrived whole a buffer of its own."""
        frame = self._frame = PartialFrame(start)
        if frame.size:
            # Its first bytes are here already and bounded by the scratch buffer; without memory, read no more.
            self._pay_for(frame, frame.capacity)

    def _frame_buffer_full(self, frame: PartialFrame) -> None:
        """The buffer is full: with the length prefix, with a part of the frame, or with all of it."""
        if frame.whole:
            self._start_whole_frame()
            return
        if frame.size == 0 and not REQUEST_BYTES_MIN <= frame.begin_body() <= self.frame_bytes_max:
            self._refuse_size(frame.size)
            return
        capacity = frame.capacity_wanted()
        if self._pay_for(frame, capacity):
            frame.grow(capacity)

    def _pay_for(self, frame: PartialFrame, capacity: int) -> bool:
        if self._listener.memory.acquire(self, capacity - frame.charged):
            frame.charged = capacity
            return True
        self._held |= HELD_BY_MEMORY
        return False

    def _start_whole_frame(self) -> None:
        """Dispatch the frame in its own buffer, or leave it there while something holds it back."""
        frame = self._frame
        if frame is None or self._held:
            return
        if self._listener.turn.spent():
            self._wait_for_turn()
            return
        self._frame = None
        self._working = True
        try:
            self._dispatch(self, frame.body, True)
        finally:
            self._working = False
            if self._corked is not None:
                self._uncork()
            if self._held & HELD_BY_EXCLUSIVE and self._transport is not None:
                self._exclusive_charged += frame.charged
            else:
                self._listener.memory.release(self, frame.charged)

    def _drop_frame(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None and frame.charged:
            self._listener.memory.release(self, frame.charged)

    def _exclusive_over(self) -> None:
        self._held &= ~HELD_BY_EXCLUSIVE
        self._release_exclusive()

    def _release_exclusive(self) -> None:
        if self._exclusive_charged:
            charged, self._exclusive_charged = self._exclusive_charged, 0
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

    def _wait_for_turn(self) -> None:
        self._held |= HELD_BY_TURN
        self._listener.turn.defer(self._turn_came)

    def _turn_came(self) -> None:
        self._held &= ~HELD_BY_TURN
        self._resume()

    def _resume(self) -> None:
        if self._working:
            return
        if not self._held and self._backlog is not None:
            self._work(self._backlog, self._backlog_position, len(self._backlog), owned=True)
        if not self._held and self._frame is not None and self._frame.whole:
            self._start_whole_frame()
        self._settle()

    def _settle(self) -> None:
        if self._transport is None or self._held & HELD_BY_CLOSE or self._working:
            return
        waits = self._backlog is not None or (self._frame is not None and self._frame.whole)
        stop = waits or self._held & (HELD_BY_READER | HELD_BY_MEMORY)
        if stop and self._reading:
            self._reading = False
            self._transport.pause_reading()
        elif not stop and not self._reading:
            self._reading = True
            self._transport.resume_reading()
