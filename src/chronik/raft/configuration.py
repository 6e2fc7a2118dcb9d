"""Membership: who counts, how it may change, and which configuration holds at which index. Pure functions and a list.

Rules
1. A configuration takes effect on a node as soon as its entry is in that node's log, committed or not, and stops to
   hold when the entry is cut off again.
2. Each change adds or removes at most one voter, so that any quorum before it and any quorum after it share a node.
   The next change waits until the previous one is committed, and until the leader has committed an entry of its own
   term (without that, two leaders of different terms could each have one uncommitted change, and not overlap).
3. A voter is a node id *and* a directory id, made together with its data folder. A node that comes back with an empty
   folder has forgotten its votes and its log: it has another directory id, and is not that voter. It neither votes nor
   counts, though it is still sent the log. To get it back: DEMOTE_VOTER (or REMOVE_VOTER), then ADD_VOTER with its new
   directory id. Replacing one directory id by another in one step would be two changes at once, and is refused.
4. A group that starts for the first time from a list of `id@host:port` does not know directory ids: they are
   UNKNOWN_DIRECTORY, which matches any. A leader records the ids it learns from the answers of its peers in a
   configuration of its own accord.

The window of rule 4: between the first start and the moment when every voter has stored a configuration that names the
directory of voter N, losing the folder of N can go unnoticed: a voter that has not stored it may accept the emptied N
as the original. With a quorum of voters up this takes a few round trips after the first election; for a voter that is
started later, until it has caught up once. A group whose first configuration names the directory ids has no window.
For the same reason an emptied node that is started again as a group of one is just that: another group. The cluster id,
which peers compare before they talk, keeps the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chronik.raft.errors import ChangeRefused
from chronik.raft.types import (
    UNKNOWN_DIRECTORY,
    ChangeKind,
    Configuration,
    ConfigurationChange,
    Entry,
    EntryKind,
    Member,
    SnapshotMeta,
    decode_configuration,
)


def is_voter(configuration: Configuration, node_id: int, directory_id: bytes) -> bool:
    """Whether the node with this id and this directory votes and counts in `configuration`."""
    member = configuration.voters.get(node_id)
    return member is not None and member.directory_id in (UNKNOWN_DIRECTORY, directory_id)


def quorum_value(values: list[int], voter_count: int) -> int:
    """The highest value that a majority of `voter_count` voters has reached; voters not in `values` have reached 0."""
    position = voter_count // 2
    if len(values) <= position:
        return 0
    values.sort(reverse=True)
    return values[position]


def apply_change(configuration: Configuration, change: ConfigurationChange) -> Configuration:
    """The configuration after `change`; refuses what makes no sense or would break rule 3."""
    voters, observers = dict(configuration.voters), dict(configuration.observers)
    member, node_id = change.member, change.member.node_id
    match change.kind:
        case ChangeKind.ADD_VOTER:
            _require_no_voter(voters, member, "a voter")
            _require_directory(member)
            observers.pop(node_id, None)
            voters[node_id] = member
        case ChangeKind.ADD_OBSERVER:
            _require_no_voter(voters, member, "an observer")
            _require_directory(member)
            if observers.get(node_id) == member:
                raise ChangeRefused(f"node {node_id} is an observer already")
            observers[node_id] = member
        case ChangeKind.REMOVE_VOTER:
            _take_voter(voters, member, must_match=True)
        case ChangeKind.DEMOTE_VOTER:
            voter = _take_voter(voters, member, must_match=False)
            directory_id = member.directory_id if member.directory_id != UNKNOWN_DIRECTORY else voter.directory_id
            observers[node_id] = Member(node_id, directory_id, member.host or voter.host, member.port or voter.port)
        case ChangeKind.REMOVE_OBSERVER:
            if observers.pop(node_id, None) is None:
                raise ChangeRefused(f"node {node_id} is not an observer")
        case ChangeKind.UPDATE_ADDRESS:
            _update_address(voters, observers, member)
    return Configuration(voters, observers)


def _require_directory(member: Member) -> None:
    if member.directory_id == UNKNOWN_DIRECTORY:
        raise ChangeRefused(f"node {member.node_id} can only be added with its directory id")


def _require_no_voter(voters: Mapping[int, Member], member: Member, wish: str) -> None:
    present = voters.get(member.node_id)
    if present is None:
        return
    if present.directory_id in (UNKNOWN_DIRECTORY, member.directory_id):
        raise ChangeRefused(f"node {member.node_id} is a voter already")
    raise ChangeRefused(
        f"node {member.node_id} is a voter with data folder {present.directory_id.hex()}; "
        f"remove that voter first, then add the node as {wish} with its new folder {member.directory_id.hex()}"
    )


def _take_voter(voters: dict[int, Member], member: Member, *, must_match: bool) -> Member:
    present = voters.get(member.node_id)
    if present is None:
        raise ChangeRefused(f"node {member.node_id} is not a voter")
    known = UNKNOWN_DIRECTORY not in (member.directory_id, present.directory_id)
    if must_match and known and member.directory_id != present.directory_id:
        raise ChangeRefused(
            f"node {member.node_id} is a voter with data folder {present.directory_id.hex()}, "
            f"not {member.directory_id.hex()}: it was replaced meanwhile"
        )
    if len(voters) == 1:
        raise ChangeRefused(f"node {member.node_id} is the last voter: add another one before removing it")
    return voters.pop(member.node_id)


def _update_address(voters: dict[int, Member], observers: dict[int, Member], member: Member) -> None:
    members = voters if member.node_id in voters else observers
    present = members.get(member.node_id)
    if present is None:
        raise ChangeRefused(f"node {member.node_id} is neither voter nor observer: add it first")
    if (present.host, present.port) == (member.host, member.port):
        raise ChangeRefused(f"node {member.node_id} is at {member.host}:{member.port} already")
    members[member.node_id] = Member(member.node_id, present.directory_id, member.host, member.port)


def with_learned_directories(configuration: Configuration, learned: Mapping[int, bytes]) -> Configuration | None:
    """`configuration` with the directory ids that were unknown and are now learned, or None if nothing is new."""

    def fill(members: Mapping[int, Member]) -> dict[int, Member]:
        return {
            node_id: Member(node_id, learned[node_id], member.host, member.port)
            if member.directory_id == UNKNOWN_DIRECTORY and node_id in learned
            else member
            for node_id, member in members.items()
        }

    filled = Configuration(fill(configuration.voters), fill(configuration.observers))
    return None if filled == configuration else filled


class ConfigurationHistory:
    """The configurations in the log, oldest first; the first is the one of the snapshot or the first start."""

    __slots__ = ("_steps",)

    def __init__(self, snapshot: SnapshotMeta, entries: Iterable[Entry]) -> None:
        self._steps: list[tuple[int, Configuration]] = [(snapshot.index, snapshot.configuration)]
        self.append(entry for entry in entries if entry.index > snapshot.index)

    @property
    def latest(self) -> Configuration:
        return self._steps[-1][1]

    @property
    def latest_index(self) -> int:
        return self._steps[-1][0]

    def at(self, index: int) -> Configuration:
        """The configuration that holds once the log is applied through `index`."""
        for step_index, configuration in reversed(self._steps):
            if step_index <= index:
                return configuration
        return self._steps[0][1]

    def append(self, entries: Iterable[Entry]) -> bool:
        """Take up the configurations among entries that were appended; whether there was one."""
        found = False
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                self._steps.append((entry.index, decode_configuration(entry.data)))
                found = True
        return found

    def truncate_from(self, index: int) -> None:
        """The log was cut at `index`."""
        while len(self._steps) > 1 and self._steps[-1][0] >= index:
            self._steps.pop()

    def compact(self, index: int) -> None:
        """Nothing before `index` will be asked for any more."""
        while len(self._steps) > 1 and self._steps[1][0] <= index:
            self._steps.pop(0)

    def reset(self, snapshot: SnapshotMeta) -> None:
        """The log was replaced by a snapshot."""
        self._steps = [(snapshot.index, snapshot.configuration)]
