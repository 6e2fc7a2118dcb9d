"""Whether a proposal may enter the log: the limits that keep the memory of a leader bounded."""

from __future__ import annotations

from collections.abc import Sequence

from chronik.raft.errors import ProposalDropped
from chronik.raft.log import ENTRY_OVERHEAD_BYTES, RaftLog
from chronik.raft.settings import RaftSettings


def require_room(log: RaftLog, settings: RaftSettings, datas: Sequence[bytes]) -> None:
    """Refuse a proposal that would take the log over its limits; nothing has been appended then."""
    size = sum(map(len, datas)) + ENTRY_OVERHEAD_BYTES * len(datas)
    if size > settings.uncommitted_bytes_max:
        raise ProposalDropped(
            f"a proposal of {size} bytes exceeds the limit of {settings.uncommitted_bytes_max}: split it"
        )
    if log.bytes_uncommitted + size > settings.uncommitted_bytes_max:
        raise ProposalDropped(
            f"{log.bytes_uncommitted} bytes wait to be committed, the limit is {settings.uncommitted_bytes_max}: "
            f"retry when the group keeps up"
        )
    if log.bytes_kept + size > settings.log_bytes_max:
        raise ProposalDropped(
            f"{log.bytes_kept} bytes of log are in memory, the limit is {settings.log_bytes_max}: "
            f"retry when a snapshot was taken"
        )
