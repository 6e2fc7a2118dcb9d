"""What a node does about its own membership, in the background: join, become a voter, correct its address."""

from __future__ import annotations

import msgspec
import structlog

from chronik.raft.driver_errors import ProposeError
from chronik.raft.driver_group import Group
from chronik.raft.driver_membership import JOIN_TIMEOUT_S, Membership
from chronik.raft.transport_frames import PeerError, RemoteError
from chronik.raft.types import UNKNOWN_DIRECTORY, Member

log = structlog.get_logger()

MEET = "raft.meet"
MEET_AGAIN_S = 10.0
PROMOTE_TIMEOUT_S = 30.0


class Upkeep:
    """The background task of a node. `seeds` are the addresses at which it was told to join."""

    def __init__(
        self, group: Group, membership: Membership, directory_id: bytes, seeds: list[tuple[str, int]], as_voter: bool
    ) -> None:
        self._group = group
        self._membership = membership
        self._directory_id = directory_id
        self._seeds = seeds
        self._must_join = bool(seeds) and not self._is_member()
        self._must_rise = bool(seeds) and as_voter
        self._must_meet = bool(seeds) and not self._must_join
        self._meet_at = 0.0
        self._last_problem = ""
        group.transport.serve(MEET, _serve_meeting)

    def _is_member(self) -> bool:
        configuration, own = self._group.core.configuration, self._group.core.node_id
        present = configuration.voters.get(own) or configuration.observers.get(own)
        return present is not None and present.directory_id in (UNKNOWN_DIRECTORY, self._directory_id)

    async def run(self) -> None:
        """Does what is due, again and again until it is done, at a bounded pace."""
        group = self._group
        seed = 0
        while True:
            try:
                if self._must_join and not self._is_member():
                    seed += 1
                    await self._join(*self._seeds[seed % len(self._seeds)])
                elif group.core.leader_id:
                    self._must_join = False
                    await self._when_led()
                self._last_problem = ""
            except (ProposeError, PeerError, OSError, TimeoutError, msgspec.DecodeError) as error:
                self._note(error)
            if self._must_meet and group.transport.identity.cluster_id and group.loop.time() >= self._meet_at:
                self._meet_at = group.loop.time() + MEET_AGAIN_S
                await self._meet(*self._seeds[0])
            await group.change(group.loop.time() + group.settings.upkeep_s)

    async def _join(self, host: str, port: int) -> None:
        try:
            await self._membership.join(host, port)
        except OSError as error:
            raise OSError(f"nobody answers at {host}:{port}, where this node was told to join: {error}") from error

    async def _meet(self, host: str, port: int) -> None:
        """A member need not join. But were it told to join another cluster than its own, nobody else would notice."""
        try:
            await self._group.transport.request_address(host, port, MEET, b"", JOIN_TIMEOUT_S)
        except RemoteError as error:
            if error.code == "refused":
                log.warning(
                    "told to join a node of another cluster than this data folder belongs to; going on with this one",
                    join=f"{host}:{port}",
                    reason=str(error),
                )
        except (PeerError, OSError, TimeoutError):
            return  # who is down may be one of ours
        self._must_meet = False

    async def _when_led(self) -> None:
        group = self._group
        configuration, own = group.core.configuration, group.core.node_id
        if own in configuration.voters:
            self._must_rise = False
        elif self._must_rise and own in configuration.observers:
            await self._membership.add_voter(own, PROMOTE_TIMEOUT_S)
            return
        present = configuration.voters.get(own) or configuration.observers.get(own)
        address = group.transport.address
        if present is not None and address[0] and self._is_member() and (present.host, present.port) != address:
            await self._membership.update_address(Member(own, self._directory_id, *address), JOIN_TIMEOUT_S)

    def _note(self, error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"
        if problem != self._last_problem:
            self._last_problem = problem
            log.warning("not a full member of the cluster yet; trying again", reason=str(error) or problem)


async def _serve_meeting(peer: int, payload: bytes) -> bytes:
    return b""
