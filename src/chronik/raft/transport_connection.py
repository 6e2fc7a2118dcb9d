"""One connection between two nodes: bytes to frames and back, with limits. Who may say what is decided above.

Small frames are read into one buffer and looked at in place; a frame larger than that gets a buffer of its own, into
which the socket writes directly, so megabytes are never joined or copied.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from chronik.raft.transport_frames import (
    HANDSHAKE_FRAME_BYTES_MAX,
    HEADER,
    LENGTH,
    VERSION_MAX,
    VERSION_MIN,
    Buffer,
    Channel,
    FrameKind,
    ProtocolViolation,
)

RECEIVE_BUFFER_BYTES = 64 * 1024
WRITE_HIGH_WATER_BYTES: dict[Channel, int] = {"control": 1024 * 1024, "data": 4 * 1024 * 1024}
MESSAGE_QUEUE_MAX = 4096
MESSAGE_QUEUE_BYTES_MAX = 16 * 1024 * 1024


class FrameOwner(Protocol):
    """Who handles what arrives on a connection."""

    def frame_received(self, connection: Connection, kind: FrameKind, body: memoryview, owned: bool) -> None:
        """`body` is valid during the call only, unless `owned`: then it is a buffer of its own, and stays."""

    def connection_closed(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """A framed connection. Before the handshake only small frames are accepted."""

    def __init__(self, owner: FrameOwner, clock: Callable[[], float], *, hold_reading: bool = False) -> None:
        """With `hold_reading` nothing more is read while the other side does not read what was written: for the side
        that answers. The side that asks always reads, so the two never wait for each other."""
        self._owner = owner
        self._hold_reading = hold_reading
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0
        self._frame_bytes_max = HANDSHAKE_FRAME_BYTES_MAX
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._writable: asyncio.Future[None] | None = None
        self.paused = False
        self.opened_at = clock()
        self.last_received = self.opened_at
        self.dropped_messages = 0
        self.address = ""
        self.unwanted = False
        """Set before the connection is made, to close it as soon as it is."""
        self.violation: str | None = None
        """What the other side did that no node does, if that is why the connection was closed."""

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_mid_frame(self) -> bool:
        return self._filled > 0 or self._large is not None

    @property
    def unsent_bytes(self) -> int:
        return self._queue_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def handshake_done(self, channel: Channel, frame_bytes_max: int) -> None:
        """From now on frames of up to `frame_bytes_max` are accepted."""
        self._frame_bytes_max = frame_bytes_max
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES[channel])

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def write_buffers(self, buffers: list[Buffer]) -> None:
        """The buffers must not change before they are sent."""
        if self._transport is not None:
            self._transport.writelines(buffers)

    def write_or_drop(self, frame: bytes) -> bool:
        """For messages that the sender repeats by itself: queued while the socket is full, dropped beyond the limit."""
        if self._transport is None:
            return False
        if not self.paused:
            self._transport.write(frame)
            return True
        if len(self._queue) >= MESSAGE_QUEUE_MAX or self._queue_bytes + len(frame) > MESSAGE_QUEUE_BYTES_MAX:
            self.dropped_messages += 1
            return False
        self._queue.append(frame)
        self._queue_bytes += len(frame)
        return True

    async def writable(self) -> None:
        """Returns when the socket takes more, or the connection is closed."""
        while self.paused and self.is_open:
            if self._writable is None:
                self._writable = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Closes after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- callbacks of the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        if self.unwanted:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._queue.clear()
        self._queue_bytes = 0
        self.resume_writing()
        self._owner.connection_closed(self)

    def pause_writing(self) -> None:
        self.paused = True
        if self._hold_reading and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        if self._hold_reading and self.is_open and self._transport is not None:
            self._transport.resume_reading()
        while self._queue and not self.paused and self._transport is not None:
            frame = self._queue.popleft()
            self._queue_bytes -= len(frame)
            self._transport.write(frame)
        if self._writable is not None and not self.paused:
            self._writable.set_result(None)
            self._writable = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received = self._clock()
        try:
            if self._large is None:
                self._filled += nbytes
                self._take_frames()
                return
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                frame, self._large = self._large, None
                self._deliver(frame, owned=True)
        except ProtocolViolation as violation:
            self.violation = str(violation)
            self.abort()

    def eof_received(self) -> bool:
        return False

    def _take_frames(self) -> None:
        position = 0
        while self._filled - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, position)
            if not 2 <= length <= self._frame_bytes_max:
                raise ProtocolViolation(f"a frame of {length} bytes, the limit is {self._frame_bytes_max}")
            start = position + LENGTH.size
            if start + length <= self._filled:
                self._deliver(self._view[start : start + length], owned=False)
                position = start + length
                if not self.is_open:
                    self._filled = 0
                    return
                continue
            if LENGTH.size + length > RECEIVE_BUFFER_BYTES:
                self._begin_large(start, length)
                return
            break
        if position:
            left = self._filled - position
            self._buffer[:left] = self._buffer[position : self._filled]
            self._filled = left

    def _begin_large(self, start: int, length: int) -> None:
        large = memoryview(bytearray(length))
        self._large_filled = self._filled - start
        large[: self._large_filled] = self._view[start : self._filled]
        self._large = large
        self._filled = 0

    def _deliver(self, frame: memoryview, owned: bool) -> None:
        _, version, kind = HEADER.unpack_from(b"\0\0\0\0" + bytes(frame[:2]))
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise ProtocolViolation(f"a frame of version {version}, this node speaks {VERSION_MIN} to {VERSION_MAX}")
        try:
            frame_kind = FrameKind(kind)
        except ValueError:
            raise ProtocolViolation(f"a frame of the unknown kind {kind}") from None
        self._owner.frame_received(self, frame_kind, frame[2:], owned)
