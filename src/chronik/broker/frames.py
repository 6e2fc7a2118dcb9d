"""Buffers for frames on their way in: one that all connections share, and one for each frame that comes in pieces.

What lives here: the bytes and how a buffer grows. What does not: who pays for them and what holds a frame back
(connection.py).
"""

from __future__ import annotations

from struct import Struct

from chronik.broker.limits import FRAME_BUFFER_FIRST_BYTES, FRAME_BUFFER_GROWTH, SCRATCH_BYTES

LENGTH = Struct(">i")
LENGTH_BYTES = 4
REQUEST_BYTES_MIN = 8
"""API key, version and correlation id: what every request begins with."""


class Scratch:
    """The receive buffer that the connections of one loop share; the next read of any of them overwrites it."""

    __slots__ = ("view",)

    def __init__(self, size: int = SCRATCH_BYTES) -> None:
        self.view = memoryview(bytearray(size))


class PartialFrame:
    """A frame that did not arrive whole: first its length prefix, then its body.

    The buffer holds at most a few times what the client has really sent, whatever length it claims.
    """

    __slots__ = ("_buffer", "_filled", "charged", "size")

    def __init__(self, start: memoryview) -> None:
        self.charged = 0  # bytes of request memory taken for it
        self.size = 0  # of the body; 0 while the length prefix is incomplete
        self._filled = len(start)
        if self._filled < LENGTH_BYTES:
            self._buffer = bytearray(LENGTH_BYTES)
            self._buffer[: len(start)] = start
            return
        self.size = LENGTH.unpack_from(start)[0]
        body = start[LENGTH_BYTES:]
        self._filled = len(body)
        self._buffer = bytearray(self.capacity_wanted())
        self._buffer[: len(body)] = body

    @property
    def room(self) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self._buffer)[self._filled :]

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    @property
    def full(self) -> bool:
        """Whether the buffer has no room left: the prefix is complete, or the body, or the buffer has to grow."""
        return self._filled == len(self._buffer)

    @property
    def whole(self) -> bool:
        return 0 < self.size == self._filled

    @property
    def body(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, count: int) -> None:
        self._filled += count

    def begin_body(self) -> int:
        """The prefix is complete: returns the length that it claims, which the caller has to check."""
        self.size = LENGTH.unpack(self._buffer)[0]
        self._buffer = bytearray()
        self._filled = 0
        return self.size

    def capacity_wanted(self) -> int:
        """How large the buffer should be for what comes next."""
        return min(self.size, max(FRAME_BUFFER_FIRST_BYTES, FRAME_BUFFER_GROWTH * self._filled))

    def grow(self, capacity: int) -> None:
        if capacity > len(self._buffer):
            larger = bytearray(capacity)
            larger[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = larger
