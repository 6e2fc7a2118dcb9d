"""What the parts of a driver share: the core, the way to the peers, who waits, whether this node still takes part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chronik.raft.core import RaftCore
from chronik.raft.driver_errors import ProposeError
from chronik.raft.driver_settings import DriverSettings
from chronik.raft.driver_status import NO_MEMBER_YET, no_member
from chronik.raft.driver_waiting import Waiting
from chronik.raft.state import Role
from chronik.raft.transport import PeerTransport
from chronik.raft.types import UNKNOWN_DIRECTORY, Member


def _has_vote(voter: Member, folder: bytes | None) -> bool:
    return folder is None or voter.directory_id in (UNKNOWN_DIRECTORY, folder)


class Group:
    """One node's part in its group. `touch` has the driver look for work in the core, later in this turn."""

    def __init__(
        self, core: RaftCore, transport: PeerTransport, settings: DriverSettings, touch: Callable[[], None]
    ) -> None:
        self.core = core
        self.transport = transport
        self.settings = settings
        self.touch = touch
        self.loop = asyncio.get_running_loop()
        self.waiting = Waiting(settings.results_kept_max)
        self.out: ProposeError | None = None
        """Why this node takes no part any more."""
        self._changes: dict[asyncio.Future[None], None] = {}
        self.on_change: list[Callable[[], None]] = []

    @property
    def leads(self) -> bool:
        return self.core.role is Role.LEADER

    def require_part(self) -> None:
        """Raises when this node is stopping or has failed."""
        if self.out is not None:
            raise self.out

    def leave(self, error: ProposeError) -> None:
        """This node takes no part from now on; everybody who waits is told."""
        if self.out is None:
            self.out = error
            self.waiting.fail_all(error)
            self.changed()

    def changed(self) -> None:
        """Role, term, leader or membership changed."""
        changes, self._changes = self._changes, {}
        for future in changes:
            if not future.done():
                future.set_result(None)
        for callback in self.on_change:
            callback()

    async def change(self, until: float) -> None:
        """Returns at the next change, or at the time `until`."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._changes[future] = None
        timer = self.loop.call_at(until, future.cancel)
        try:
            await asyncio.wait([future])
        finally:
            timer.cancel()
            self._changes.pop(future, None)

    def voters_reachable(self) -> int:
        """Voters that answer, this node included if it is one. Who came back with another data folder has no vote."""
        folders = {peer.node_id: peer.directory_id for peer in self.transport.peers().values() if peer.reachable}
        folders[self.core.node_id] = self.transport.identity.directory_id
        voters = self.core.configuration.voters.values()
        return sum(1 for voter in voters if voter.node_id in folders and _has_vote(voter, folders[voter.node_id]))

    def explain(self) -> str:
        """Why nothing can be agreed upon at the moment, as far as this node can see."""
        voters, reachable = len(self.core.configuration.voters), self.voters_reachable()
        if not voters:
            return NO_MEMBER_YET
        if self.core.node_id not in self.core.configuration.voters | self.core.configuration.observers:
            return no_member(self.core.configuration)
        if reachable <= voters // 2:
            return f"no quorum: {reachable} of {voters} voters reachable"
        if self.leads:
            return f"this node leads in term {self.core.term}, {reachable} of {voters} voters reachable"
        if self.core.leader_id:
            return f"node {self.core.leader_id} leads in term {self.core.term}"
        return f"no leader is elected yet, {reachable} of {voters} voters reachable"
