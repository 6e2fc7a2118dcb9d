"""Why a proposal, a read or a membership change did not succeed on this node. All but a few may be tried again."""

from __future__ import annotations


class ProposeError(Exception):
    """The outcome asked for was not seen here. `retriable`: trying again may help. `ambiguous`: it may yet happen."""

    retriable = True
    ambiguous = False


class NoLeader(ProposeError):
    """There was nobody to propose to until the deadline; nothing was proposed."""


class LeaderUnreachable(ProposeError):
    """A leader is known, but could not be reached until the deadline; nothing was proposed."""


class ProposeTimeout(ProposeError, TimeoutError):
    """The proposal was made, and its outcome was not known by the deadline: it may or may not be committed later."""

    ambiguous = True


class OutcomeUnknown(ProposeError):
    """The answer of the leader was lost, or a snapshot took the place of the entry: it may or may not be committed."""

    ambiguous = True


class SteppedDown(ProposeError):
    """This node stopped to lead before the read was confirmed."""


class Superseded(ProposeError):
    """Another leader's entry took the place of this one: it was not committed, and never will be."""


class QueueFull(ProposeError):
    """Too many proposals wait already; this one was not taken."""


class ProposalTooLarge(ProposeError):
    """One entry cannot be this large."""

    retriable = False


class ChangeFailed(ProposeError):
    """A membership change was refused, or did not come through in time. The message says which."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self.retriable = retriable


class NodeStopped(ProposeError):
    """This node is stopping, or has not started."""


class NodeFailed(ProposeError):
    """This node no longer takes part in consensus; its disk or its state machine failed. Another node can help."""

    retriable = False
