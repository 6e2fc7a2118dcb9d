"""The parts of the core by themselves: the log in memory, settings, the wire."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.raft.log import ENTRY_OVERHEAD_BYTES, UNKNOWN_TERM, RaftLog
from chronik.raft.settings import RaftSettings
from chronik.raft.types import (
    Append,
    AppendResponse,
    CommitNotice,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    decode_configuration,
    decode_message,
    encode_configuration,
    encode_message,
)
from harness.raft_group import configuration, directory


def entries(first: int, *terms: int, size: int = 0) -> list[Entry]:
    return [Entry(term, index, EntryKind.DATA, b"x" * size) for index, term in enumerate(terms, first)]


# --- the log ----------------------------------------------------------------------------------------------------------


def test_a_stored_log_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="entry 3 where 2 belongs"):
        RaftLog(SnapshotMeta(), [Entry(1, 1), Entry(1, 3)], 0)
    with pytest.raises(ValueError, match="entry 7 where 6 belongs"):
        RaftLog(SnapshotMeta(5, 1), [Entry(1, 7)], 0)


def test_a_stored_log_that_the_snapshot_has_replaced_is_given_up() -> None:
    for stored in (entries(1, 1, 1), entries(1, 1, 1, 1, 1, 1, 1, 1)):
        log = RaftLog(SnapshotMeta(5, 2), stored, 0)
        assert (log.last_index, log.last_term, log.commit, log.entries) == (5, 2, 5, [])


def test_a_stored_log_may_reach_back_behind_the_snapshot() -> None:
    log = RaftLog(SnapshotMeta(3, 1), entries(1, 1, 1, 1, 2, 2), 4)
    assert (log.base_index, log.last_index, log.commit, log.applied) == (1, 5, 4, 3)
    assert [log.term_at(index) for index in range(7)] == [UNKNOWN_TERM, 1, 1, 1, 2, 2, UNKNOWN_TERM]


def test_a_commit_index_past_the_end_of_the_stored_log_is_not_believed() -> None:
    assert RaftLog(SnapshotMeta(), entries(1, 1, 1), 9).commit == 2


def test_slices_respect_both_limits_and_give_at_least_one_entry() -> None:
    log = RaftLog(SnapshotMeta(), entries(1, *[1] * 10, size=68), 0)
    size = 68 + ENTRY_OVERHEAD_BYTES
    assert len(log.slice_bounded(1, 10, 3, 10**6)) == 3
    assert len(log.slice_bounded(4, 10, 99, 2 * size)) == 2
    assert len(log.slice_bounded(4, 10, 99, 2 * size - 1)) == 1
    assert len(log.slice_bounded(4, 10, 99, 1)) == 1
    assert log.slice_bounded(11, 10, 99, 99) == []
    log.compact(SnapshotMeta(5, 1), 0)
    assert [e.index for e in log.slice_bounded(6, 10, 99, 2 * size)] == [6, 7]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 5), max_size=30).map(sorted),
    st.integers(0, 35),
    st.integers(0, 6),
    st.integers(0, 10),
)
def test_the_last_place_of_possible_agreement_is_what_a_walk_backwards_finds(
    terms: list[int], index: int, term: int, compacted: int
) -> None:
    log = RaftLog(SnapshotMeta(), entries(1, *terms), len(terms))
    base = min(compacted, len(terms))
    if base:
        log.compact(SnapshotMeta(base, log.term_at(base)), 0)
    walk = min(index, log.last_index)
    while walk > log.base_index and log.term_at(walk) > term:
        walk -= 1
    assert log.last_with_term_at_most(index, term) == (walk, max(0, log.term_at(walk)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 4), max_size=12).map(sorted),
    st.lists(st.integers(1, 4), max_size=12).map(sorted),
    st.integers(0, 12),
)
def test_merging_gives_the_leaders_entries_and_keeps_what_agrees(own: list[int], sent: list[int], commit: int) -> None:
    agreed = 0
    while agreed < min(len(own), len(sent)) and own[agreed] == sent[agreed]:
        agreed += 1
    log = RaftLog(SnapshotMeta(), entries(1, *own), min(commit, agreed))
    changed = log.merge(entries(1, *sent))
    result = [entry.term for entry in log.entries]
    assert result == (own if agreed == len(sent) else sent)
    assert changed == (0 if agreed == len(sent) else agreed + 1)
    assert [entry.index for entry in log.entries] == list(range(1, len(result) + 1))
    assert log.stable <= log.handed <= log.last_index
    assert log.bytes_kept == ENTRY_OVERHEAD_BYTES * len(result)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="healthy followers campaign"):
        RaftSettings(election_ticks=3, heartbeat_ticks=3)
    with pytest.raises(ValueError, match="append_bytes_max must be at least 1"):
        RaftSettings(append_bytes_max=0)
    assert not RaftSettings(pre_vote=False).pre_vote


# --- the wire ---------------------------------------------------------------------------------------------------------

MESSAGES: list[Message] = [
    VoteRequest(1, 2, 3, directory(1), directory(2), 4, 5, pre=True, transfer=True),
    VoteResponse(1, 2, 3, directory(1), granted=True, pre=True),
    Append(1, 2, 3, 4, 5, 6, [Entry(5, 5, EntryKind.CONFIGURATION, b"\x00\xff"), Entry(5, 6)]),
    AppendResponse(1, 2, 3, directory(1), 4, rejected=True, hint_index=5, hint_term=6),
    Heartbeat(1, 2, 3, directory(2), 4, 5),
    HeartbeatResponse(1, 2, 3, directory(1), 4),
    CommitNotice(1, 2, 3, directory(2), 4),
    InstallSnapshot(1, 2, 3, SnapshotMeta(4, 5, configuration((1, 2), (3,)), 6, 7)),
    TimeoutNow(1, 2, 3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode_message(encode_message(message)) == message
    assert decode_message(memoryview(encode_message(message))) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_with_fields_of_a_newer_version_is_understood(message: Message) -> None:
    parts = msgspec.msgpack.decode(encode_message(message))
    assert decode_message(msgspec.msgpack.encode([*parts, "from the future"])) == message


def test_a_message_without_the_fields_that_came_later_is_understood() -> None:
    parts = msgspec.msgpack.decode(encode_message(AppendResponse(1, 2, 3, directory(1), 4)))
    assert decode_message(msgspec.msgpack.encode(parts[:6])) == AppendResponse(1, 2, 3, directory(1), 4)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x93\x01\x02\x03", b"\x91\x63", b"\x94\x09\x01\x02\xa1x"])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(data)


def test_the_bytes_of_what_is_stored_never_change() -> None:
    """Logs and hard states written by any version are read by all later ones: these bytes are for ever."""
    encode = msgspec.msgpack.encode
    assert encode(Entry(7, 300, EntryKind.CONFIGURATION, b"ab")).hex() == "9407cd012c02c4026162"
    assert encode(HardState(7, 2, 300, b"\x01" * 16)).hex() == "940702cd012cc410" + "01" * 16
    assert encode_configuration(configuration((1,), (2,))).hex() == (
        "92810194"
        + "01c410"
        + "0100" * 8
        + "a6686f73742d31cd23e8"
        + "810294"
        + "02c410"
        + "0200" * 8
        + "a6686f73742d32cd23e8"
    )
    assert decode_configuration(bytes.fromhex("928080")) == Configuration()
    assert msgspec.msgpack.decode(bytes.fromhex("93010203"), type=HardState) == HardState(1, 2, 3)
