"""What the pure group machines ask of the world: answers to give and records to write.

A ticket is whatever the caller gave with a request; it comes back, unread, with the answer to that request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from chronik.protocol.messages.internal_groups import GroupMetadataValue
from chronik.protocol.wire import Message

Ticket = Any


class Respond(msgspec.Struct, frozen=True):
    """Answer the request that came with this ticket."""

    ticket: Ticket
    response: Message


class Persist(msgspec.Struct, frozen=True):
    """Write this group record; then tell the group what came of it with `persisted(this, error, now_ms)`.

    `purpose` is the group's own note on what waits for it; `member_id` and `ticket` belong to it.
    """

    value: GroupMetadataValue
    purpose: str
    generation: int
    member_id: str = ""
    previous_id: str = ""
    ticket: Ticket = None


Effect = Respond | Persist
