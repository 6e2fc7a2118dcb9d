"""What changes on a node, noticed and told: role, leader, membership, a disk that does not answer. And its status.

Log lines here say what this node has seen, nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from chronik.raft.driver_apply import Applier
from chronik.raft.driver_group import Group
from chronik.raft.driver_persist import Persistence
from chronik.raft.driver_reads import Reads
from chronik.raft.driver_status import PeerView, RaftStatus
from chronik.raft.state import Role
from chronik.raft.status import CoreStatus
from chronik.raft.storage import RaftStorage
from chronik.raft.types import UNKNOWN_DIRECTORY, Configuration, Member

log = structlog.get_logger()


class Observer:
    """Looks at the core after every turn."""

    def __init__(
        self,
        group: Group,
        applier: Applier,
        reads: Reads,
        callbacks: list[Callable[[bool, int], None]],
        *,
        addresses: Mapping[int, tuple[str, int]],
    ) -> None:
        self._group = group
        self._applier = applier
        self._reads = reads
        self._callbacks = callbacks
        core = group.core
        self._role, self._term, self._leader_id = Role.FOLLOWER, core.term, core.leader_id
        self._configuration = None if core.configuration.voters else core.configuration
        self._learned = dict(addresses)
        """Where members are, if that is known better than from the configuration."""
        self._disk_stalled = False
        self.leads = False
        self.elections = 0
        self.leader_changes = 0
        self.snapshots_installed = 0
        self.ticks = 0
        self.late_ticks = 0
        self.tick_was_late = False

    # --- role, term, leader ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Notices what changed in the core since the last look."""
        core = self._group.core
        if core.configuration is not self._configuration:
            self.configuration_seen()
            self._group.changed()
        if (core.role, core.term, core.leader_id) == (self._role, self._term, self._leader_id):
            return
        self.elections += core.term != self._term
        if self._role is Role.LEADER and (core.role is not Role.LEADER or core.term != self._term):
            self._reads.stepped_down()
            self._stop_leading(f"this node no longer leads; it led in term {self._term}")
        if core.leader_id != self._leader_id and core.leader_id:
            self.leader_changes += 1
            own = core.leader_id == core.node_id
            log.info("this node was elected" if own else "following a leader", leader=core.leader_id, term=core.term)
        elif self._leader_id and not core.leader_id:
            log.info("no leader is known", last_leader=self._leader_id, term=core.term)
        self._role, self._term, self._leader_id = core.role, core.term, core.leader_id
        self._group.changed()

    def applied(self) -> None:
        """A leader leads once it has applied an entry of its own term: then it knows all that was committed before."""
        core = self._group.core
        if not self.leads and core.role is Role.LEADER and self._applier.term == core.term:
            self.leads = True
            log.info("this node leads", term=core.term, index=self._applier.index)
            for callback in self._callbacks:
                callback(True, core.term)

    def _stop_leading(self, event: str) -> None:
        if self.leads:
            self.leads = False
            log.info(event)
            for callback in self._callbacks:
                callback(False, self._term)

    def stopped(self) -> None:
        self._stop_leading("this node no longer leads; it takes no further part")

    # --- members and their addresses -------------------------------------------------------------------------------

    def configuration_seen(self) -> None:
        """Connects to every member at the address the configuration gives, and lets go of those who left."""
        group = self._group
        before, self._configuration = self._configuration, group.core.configuration
        members = {**self._configuration.observers, **self._configuration.voters}
        old = {**before.observers, **before.voters} if before is not None else {}
        if before is not None and _ids(before) != _ids(self._configuration):
            log.info(
                "the membership changed",
                voters=sorted(self._configuration.voters),
                observers=sorted(self._configuration.observers),
            )
        for node_id, member in members.items():
            if node_id in self._learned and _moved(old.get(node_id), member):
                del self._learned[node_id]
            if node_id in self._learned:
                group.transport.set_peer(node_id, *self._learned[node_id])
            elif member.host:
                group.transport.set_peer(node_id, member.host, member.port)
        if set(old) - set(members):
            group.loop.call_later(group.settings.removed_peer_grace_s, self._let_go)

    def _let_go(self) -> None:
        configuration = self._group.core.configuration
        for node_id in self._group.transport.peers():
            if configuration.voters and node_id not in configuration.voters and node_id not in configuration.observers:
                self._group.transport.remove_peer(node_id)

    def peer_moved(self, node_id: int, host: str, port: int, directory_id: bytes) -> None:
        """A member says hello from another address than is known: that is where it is now."""
        configuration = self._group.core.configuration
        member = configuration.voters.get(node_id) or configuration.observers.get(node_id)
        if member is not None and member.directory_id in (UNKNOWN_DIRECTORY, directory_id):
            self._learned[node_id] = (host, port)
            self._group.transport.set_peer(node_id, host, port)

    def connection_changed(self, node_id: int) -> None:
        """Wakes who waits for a connection, and says so when a voter comes with another folder than it had."""
        configuration = self._group.core.configuration
        member, peer = configuration.voters.get(node_id), self._group.transport.peers().get(node_id)
        folder = peer.directory_id if peer is not None and peer.connected else None
        if member is not None and folder is not None and member.directory_id not in (UNKNOWN_DIRECTORY, folder):
            self._group.transport.identity.log_once(
                f"folder {node_id} {folder.hex()}",
                "a voter came back with another data folder; it has no vote until it is added as a voter again",
                node=node_id,
                expected=member.directory_id.hex(),
                found=folder.hex(),
            )
        self._group.changed()

    # --- the disk --------------------------------------------------------------------------------------------------

    def disk_answers(self, persistence: Persistence) -> bool:
        """Whether time may pass for this node: one that cannot write must not lead, nor ask to."""
        stalled = persistence.is_full or persistence.busy_for_s() > self._group.settings.disk_stalled_s
        if stalled and not self._disk_stalled:
            log.error(
                "the disk of the consensus log does not answer; this node neither leads nor campaigns until it does",
                waiting_s=round(persistence.busy_for_s(), 1),
                full=persistence.is_full,
            )
        elif self._disk_stalled and not stalled:
            log.info("the disk of the consensus log answers again")
        self._disk_stalled = stalled
        return not stalled

    # --- status ----------------------------------------------------------------------------------------------------

    def status(self, storage: RaftStorage, *, snapshots_taken: int, syncs: int) -> RaftStatus:
        """All of it, at this moment."""
        core = self._group.core.status()
        out = self._group.out
        return RaftStatus(
            node_id=core.node_id,
            directory_id=core.directory_id,
            cluster_id=storage.cluster_id,
            role=core.role,
            is_voter=core.is_voter,
            term=core.term,
            leader_id=core.leader_id if out is None else 0,
            commit=core.commit,
            applied=self._applier.index,
            last_index=core.last_index,
            first_index=core.first_index,
            snapshot_index=core.snapshot_index,
            log_bytes=core.log_bytes,
            configuration=core.configuration,
            configuration_committed=core.configuration_committed,
            peers=self._peers(core),
            elections=self.elections,
            leader_changes=self.leader_changes,
            snapshots_taken=snapshots_taken,
            snapshots_installed=self.snapshots_installed,
            syncs=syncs,
            late_ticks=self.late_ticks,
            voters_reachable=self._group.voters_reachable(),
            failure=str(out) if out is not None else None,
        )

    def _peers(self, core: CoreStatus) -> dict[int, PeerView]:
        connections = self._group.transport.peers()
        members = {**core.configuration.observers, **core.configuration.voters}
        views: dict[int, PeerView] = {}
        for node_id, member in members.items():
            if node_id == core.node_id:
                continue
            connection, progress = connections.get(node_id), core.peers.get(node_id)
            folder = connection.directory_id if connection is not None else None
            views[node_id] = PeerView(
                node_id=node_id,
                host=connection.host if connection is not None else member.host,
                port=connection.port if connection is not None else member.port,
                voter=node_id in core.configuration.voters,
                connected=connection is not None and connection.connected,
                reachable=connection is not None and connection.reachable,
                heard_ago_s=connection.heard_ago_s if connection is not None else None,
                match=progress.match if progress is not None else None,
                lag=max(0, core.last_index - progress.match) if progress is not None else None,
                state=progress.state if progress is not None else None,
                same_folder=None if folder is None else member.directory_id in (UNKNOWN_DIRECTORY, folder),
                problem=connection.problem if connection is not None else "no address is known",
            )
        return views


def _ids(configuration: Configuration) -> tuple[set[int], set[int]]:
    return set(configuration.voters), set(configuration.observers)


def _moved(old: Member | None, new: Member) -> bool:
    return old is not None and (old.host, old.port) != (new.host, new.port)
