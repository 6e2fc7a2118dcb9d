"""What the core refuses, and the one thing it must never see. Errors of disks and sockets live with their owners."""

from __future__ import annotations


class RaftError(Exception):
    """Anything the consensus core says no to."""


class NotLeader(RaftError):
    """Only the leader can do this. `leader_id` is where to go, or 0 while nobody is known to lead."""

    def __init__(self, leader_id: int) -> None:
        where = f"ask node {leader_id}" if leader_id else "no leader is known yet, try again"
        super().__init__(f"this node does not lead the group: {where}")
        self.leader_id = leader_id


class ProposalDropped(RaftError):
    """The leader did not take the proposal; nothing was appended, so trying again later is safe."""


class ReadDropped(RaftError):
    """The leader did not take the read; try again later."""


class ChangeRefused(RaftError):
    """The membership change was not taken. `retriable` says whether waiting helps or the wish itself is wrong."""

    def __init__(self, reason: str, *, retriable: bool = False) -> None:
        super().__init__(reason)
        self.retriable = retriable


class TransferRefused(RaftError):
    """Leadership cannot be handed to that node."""


class SafetyViolation(RaftError):
    """The impossible was seen: two leaders in a term, or a committed entry contradicted. The node must stop.

    It means that a disk lied, a data folder was copied or edited by hand, or there is a bug. Going on would spread it.
    """
