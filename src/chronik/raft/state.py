"""What a node knows whatever its role: who it is, its term and vote, its log and membership, and its outbox."""

from __future__ import annotations

import random
from enum import StrEnum

from chronik.raft.configuration import ConfigurationHistory, is_voter
from chronik.raft.log import RaftLog
from chronik.raft.settings import RaftSettings
from chronik.raft.types import (
    NO_NODE,
    AppendResponse,
    Configuration,
    HardState,
    Message,
    ReadState,
    SnapshotFetch,
    SnapshotMeta,
)


class Role(StrEnum):
    """The part a node plays in its term. Whether it is a voter or an observer is a matter of the configuration."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class NodeState:
    """Shared by the parts of one core. `messages` may be sent at any time, `durable_messages` only after storing."""

    __slots__ = (
        "directory_id",
        "durable_messages",
        "elapsed_ticks",
        "fetch",
        "fetching",
        "hard_state_handed",
        "hard_state_stored",
        "install",
        "installing",
        "leader_id",
        "log",
        "membership",
        "messages",
        "node_id",
        "reads",
        "rng",
        "role",
        "settings",
        "term",
        "timeout_ticks",
        "vote",
        "vote_directory_id",
    )

    def __init__(
        self,
        node_id: int,
        directory_id: bytes,
        log: RaftLog,
        membership: ConfigurationHistory,
        hard_state: HardState,
        rng: random.Random,
        settings: RaftSettings,
    ) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.settings = settings
        self.rng = rng
        self.log = log
        self.membership = membership
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.vote_directory_id = hard_state.vote_directory_id
        self.hard_state_handed = self.hard_state_stored = hard_state
        self.role = Role.FOLLOWER
        self.leader_id = NO_NODE
        self.messages: list[Message] = []
        self.durable_messages: list[Message] = []
        self.reads: list[ReadState] = []
        self.install: SnapshotMeta | None = None
        """To be handed to the driver; it stays in `installing` until the driver is done with it."""
        self.installing: SnapshotMeta | None = None
        self.fetching: SnapshotFetch | None = None
        self.fetch: SnapshotFetch | None = None
        self.restart_election_timer()

    @property
    def configuration(self) -> Configuration:
        """The configuration that holds on this node: the latest in its log, committed or not."""
        return self.membership.latest

    @property
    def committed_configuration(self) -> Configuration:
        return self.membership.at(self.log.commit)

    @property
    def may_campaign(self) -> bool:
        """Voters of the latest *or* the committed configuration campaign.

        A change that removes voters may be in the logs of only those it removes. If they stopped to campaign, nobody
        could win: the others would refuse each other nothing, but lack the log that the removed ones refuse them for.
        """
        latest, committed = self.configuration, self.committed_configuration
        return is_voter(latest, self.node_id, self.directory_id) or (
            committed is not latest and is_voter(committed, self.node_id, self.directory_id)
        )

    @property
    def counts_itself(self) -> bool:
        """Whether this node's own vote and own log count: only as a voter of the configuration that holds here."""
        return is_voter(self.configuration, self.node_id, self.directory_id)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.commit, self.vote_directory_id)

    @property
    def has_new_hard_state(self) -> bool:
        handed = self.hard_state_handed
        return handed.commit != self.log.commit or handed.term != self.term or handed.vote != self.vote

    def restart_election_timer(self) -> None:
        ticks = self.settings.election_ticks
        self.elapsed_ticks = 0
        self.timeout_ticks = ticks + 1 + self.rng.randrange(ticks)

    def enter_term(self, term: int) -> None:
        """A higher term was seen: whatever was voted for belongs to an older one."""
        if term > self.term:
            self.term = term
            self.vote = NO_NODE
            self.vote_directory_id = bytes(len(self.vote_directory_id))

    def acknowledge_append(self, target: int, index: int) -> None:
        """Promise `target`, the leader, that everything through `index` is stored here: sent once it is true."""
        response = AppendResponse(self.node_id, target, self.term, self.directory_id, index)
        pending = self.durable_messages
        if pending:
            previous = pending[-1]
            if (
                type(previous) is AppendResponse
                and not previous.rejected
                and previous.target == target
                and previous.term == self.term
                and previous.index <= index
            ):
                # The later promise includes the earlier one: a burst of appends is answered once.
                pending[-1] = response
                return
        pending.append(response)
