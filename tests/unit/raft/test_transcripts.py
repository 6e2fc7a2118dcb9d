"""Readable transcripts as tests: every file in `transcripts/` is a story of a group, with all that is said in it.

A line is a command, and the indented lines after it are what happened (`elect` is the story of `election.txt`, told
there and nowhere else). A change of the core that changes a story shows
as a difference here. If the new story is right, write it down with

    CHRONIK_REWRITE_TRANSCRIPTS=1 pytest tests/unit/raft/test_transcripts.py

and read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chronik.raft.errors import RaftError
from chronik.raft.types import (
    UNKNOWN_DIRECTORY,
    Append,
    AppendResponse,
    ChangeKind,
    CommitNotice,
    ConfigurationChange,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    VoteRequest,
    VoteResponse,
    decode_configuration,
)
from harness.raft_group import Group, member

FOLDER = Path(__file__).with_name("transcripts")
REWRITE = "CHRONIK_REWRITE_TRANSCRIPTS"


def describe_entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NOOP:
            return f"{entry.index}/{entry.term} noop"
        case EntryKind.CONFIGURATION:
            configuration = decode_configuration(entry.data)
            voters = ",".join(
                f"{m.node_id}{'?' if m.directory_id == UNKNOWN_DIRECTORY else ''}{chr(39) * m.directory_id[1]}"
                for m in configuration.voters.values()
            )
            observers = ",".join(f"{m.node_id}{chr(39) * m.directory_id[1]}" for m in configuration.observers.values())
            return f"{entry.index}/{entry.term} voters {voters}" + (f" observers {observers}" if observers else "")
        case _:
            return f"{entry.index}/{entry.term} {entry.data.decode()!r}"


def describe(message: Message) -> str:
    head = f"{message.source}→{message.target} {type(message).__name__} term {message.term}"
    match message:
        case VoteRequest():
            flags = (" pre" if message.pre else "") + (" transfer" if message.transfer else "")
            return f"{head}{flags} last {message.last_index}/{message.last_term}"
        case VoteResponse():
            return f"{head}{' pre' if message.pre else ''} {'yes' if message.granted else 'no'}"
        case Append():
            entries = ", ".join(map(describe_entry, message.entries))
            return f"{head} after {message.previous_index}/{message.previous_term} commit {message.commit} [{entries}]"
        case AppendResponse() if message.rejected:
            return f"{head} lacks {message.index}, may agree at {message.hint_index}/{message.hint_term}"
        case AppendResponse():
            return f"{head} has {message.index}"
        case Heartbeat():
            return f"{head} commit {message.commit} round {message.round}"
        case HeartbeatResponse():
            return f"{head} round {message.round}"
        case CommitNotice():
            return f"{head} commit {message.commit}"
        case InstallSnapshot():
            return f"{head} snapshot {message.snapshot.index}/{message.snapshot.term}"
        case _:
            return head


class Story(Group):
    """A group that tells what happens in it."""

    def __init__(self, voters: list[int], joiners: list[int], *, known: bool) -> None:
        self.lines: list[str] = []
        super().__init__(voters, joiners=joiners, known=known, start=False)
        self._told: dict[int, tuple[str, int, int, int, int]] = {}
        for node_id in self.nodes:
            self.start(node_id)

    def work(self, node_id: int) -> None:
        super().work(node_id)
        self.tell(node_id)

    def store(self, node_id: int) -> None:
        super().store(node_id)
        self.tell(node_id)

    def tell(self, node_id: int) -> None:
        """Say what has changed at a node."""
        node = self.nodes[node_id]
        core = node.core
        role, term, applied, reads, fetches = self._told.get(node_id, ("follower", 0, 0, 0, 0))
        if (role, term) != (core.role, core.term):
            self.lines.append(f"{node_id} is {core.role} in term {core.term}")
        self.lines += [f"{node_id} applies {describe_entry(entry)}" for entry in node.applied[applied:]]
        self.lines += [f"{node_id} serves read {read.context} at {read.index}" for read in node.reads[reads:]]
        self.lines += [
            f"{node_id} fetches snapshot {fetch.snapshot.index} from {fetch.source}" for fetch in node.fetches[fetches:]
        ]
        self._told[node_id] = (core.role, core.term, len(node.applied), len(node.reads), len(node.fetches))

    def start(self, node_id: int) -> None:
        self._told.pop(node_id, None)
        super().start(node_id)

    def step(self, message: Message) -> None:
        node = self.nodes[message.target]
        if node.is_up and (message.source, message.target) not in self.cut:
            self.lines.append(describe(message))
        super().step(message)

    # --- the commands -----------------------------------------------------------------------------------------------

    def run(self, command: str, words: list[str]) -> None:
        match command:
            case "campaign":
                self[int(words[0])].campaign()
                self.work(int(words[0]))
            case "elect":
                self.elect(int(words[0]))
                self.lines.clear()
            case "tick":
                self.tick(int(words[0]), int(words[1]) if len(words) > 1 else 1)
            case "propose":
                self[int(words[0])].propose([word.encode() for word in words[1:]])
                self.work(int(words[0]))
            case "change":
                self._change(*words)
            case "read":
                self[int(words[0])].read_index(int(words[1]))
                self.work(int(words[0]))
            case "transfer":
                self[int(words[0])].transfer(int(words[1]))
                self.work(int(words[0]))
            case "deliver":
                self.deliver(lambda message: not words or type(message).__name__ in words)
            case "drop":
                self.drop(lambda message: not words or type(message).__name__ in words)
            case "isolate" | "crash" | "restart" | "wipe" | "snapshot" | "store":
                getattr(self, command)(int(words[0]))
            case "fetched":
                self.finish_fetch(int(words[0]))
                self.tell(int(words[0]))
            case "stick":
                self.nodes[int(words[0])].disk_is_stuck = True
            case "unstick":
                self.nodes[int(words[0])].disk_is_stuck = False
                self.store(int(words[0]))
            case "heal":
                self.heal()
            case "status":
                self._status()
            case _:
                raise ValueError(f"unknown command {command!r}")

    def _change(self, leader: str, kind: str, node_id: str) -> None:
        node = self.nodes[int(node_id)]
        wish = ConfigurationChange(ChangeKind[kind.upper().replace("-", "_")], member(node.node_id, node.generation))
        self[int(leader)].propose_change(wish)
        self.work(int(leader))

    def _status(self) -> None:
        for node in self.nodes.values():
            core = node.core
            if not node.is_up:
                self.lines.append(f"{node.node_id} is down")
                continue
            entries = ", ".join(map(describe_entry, core.log.entries))
            self.lines.append(
                f"{node.node_id} {core.role} term {core.term} commit {core.commit} snapshot {core.log.snapshot.index} "
                f"[{entries}]"
            )


def tell(script: str) -> str:
    """The script with what happens in it."""
    story: Story | None = None
    told: list[str] = []
    for line in script.splitlines():
        if line.startswith("    "):
            continue
        told.append(line.rstrip())
        if not line.strip() or line.startswith("#"):
            continue
        command, *words = line.split()
        if command == "group":
            options = dict(word.partition("=")[::2] for word in words)
            voters, joiners = ([int(i) for i in options.get(k, "").split(",") if i] for k in ("voters", "joiners"))
            story = Story(voters, joiners, known="unknown" not in options)
        else:
            assert story is not None, "a transcript begins with `group`"
            try:
                story.run(command, words)
            except RaftError as error:
                story.lines.append(f"refused: {error}")
        told += [f"    {text}" for text in story.lines]
        story.lines.clear()
    return "\n".join(told) + "\n"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.txt")))
def test_the_story_goes_as_it_is_written(name: str) -> None:
    path = FOLDER / name
    written = path.read_text()
    told = tell(written)
    if os.environ.get(REWRITE):
        path.write_text(told)
    else:
        assert told == written
