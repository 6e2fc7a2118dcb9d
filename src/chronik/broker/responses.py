"""The sending half of a connection: responses in the order of their requests, however they finish.

What lives here: the slots of responses, sending them together, and what happens when the client does not read. What
does not: receiving and starting requests (connection.py, which also has the rules of both halves).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chronik.broker.limits import CORK_BYTES_MAX, BrokerLimits
from chronik.protocol.wire import Buffer

if TYPE_CHECKING:
    from chronik.broker.listener import Listener

HELD_BY_EXCLUSIVE = 1
HELD_BY_PIPELINE = 2
HELD_BY_READER = 4
HELD_BY_MEMORY = 8
HELD_BY_TURN = 16
HELD_BY_CLOSE = 32


class Slot:
    """The place of one response in the order of its connection."""

    __slots__ = ("_buffers", "_exclusive", "_sender", "filled", "on_abandoned")

    def __init__(self, sender: ResponseSender, exclusive: bool) -> None:
        self._sender = sender
        self._exclusive = exclusive
        self._buffers: Sequence[Buffer] | None = None
        self.filled = False
        self.on_abandoned: Callable[[], None] | None = None

    def fill(self, buffers: Sequence[Buffer] | None) -> None:
        """Put the response in its place; None means that this request gets none."""
        self._buffers = buffers
        self.filled = True
        self.on_abandoned = None
        self._sender.slot_filled(self._exclusive, buffers)

    def take(self) -> Sequence[Buffer] | None:
        buffers, self._buffers = self._buffers, None
        return buffers


class ResponseSender(asyncio.BufferedProtocol):
    """What a connection does with responses. `_held` is the set of reasons not to start the next request."""

    __slots__ = (
        "_corked",
        "_corked_bytes",
        "_held",
        "_limits",
        "_listener",
        "_ready_bytes",
        "_slots",
        "_transport",
        "_unread_charged",
        "_working",
        "last_active",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits: BrokerLimits = listener.limits
        self._transport: asyncio.Transport | None = None
        self._held = 0
        self._working = False  # whether requests are being started right now
        self._slots: deque[Slot] | None = None
        self._ready_bytes = 0  # of filled slots that wait behind an unfilled one
        self._unread_charged = 0
        self._corked: Sequence[Buffer] | None = None
        self._corked_bytes = 0
        self.last_active = 0.0

    @abstractmethod
    def close(self) -> None:
        """Read and start nothing more, answer what has been started, then close."""

    @abstractmethod
    def _resume(self) -> None:
        """Start what was held back, if nothing holds it any more."""

    @abstractmethod
    def _settle(self) -> None:
        """Read when there is room for more input, else do not."""

    @abstractmethod
    def _exclusive_over(self) -> None:
        """The request that held back all later ones is answered."""

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
            self._exclusive_over()
        self._flush()
        self._resume()

    @property
    def in_flight(self) -> int:
        """Requests whose responses have not been written."""
        return len(self._slots) if self._slots else 0

    # --- a client that does not read ----------------------------------------------------------------------------

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

    @property
    def waits_for_reader(self) -> bool:
        """Whether the client has stopped reading its responses."""
        return bool(self._held & HELD_BY_READER)

    # --- sending ------------------------------------------------------------------------------------------------

    def _write(self, buffers: Sequence[Buffer]) -> None:
        """Send now or, while requests are being started, together with the responses of the others."""
        self._corked_bytes += len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
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

    def _abandon_responses(self) -> None:
        """The client is gone: nobody waits for any of them."""
        self._release_unread()
        slots, self._slots = self._slots, None
        self._listener.responses.used -= self._ready_bytes
        self._ready_bytes = 0
        if slots is not None:
            for slot in slots:
                if slot.on_abandoned is not None:
                    slot.on_abandoned()
