"""Committed offsets and how groups and offsets look in the log."""

from __future__ import annotations

import pytest

from chronik.coordination.topic_access import java_hash, partition_for
from chronik.groups.offset_book import CommittedOffset, OffsetBook
from chronik.groups.records import parsed, raw
from chronik.protocol.messages.internal_groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue

DAY_MS = 24 * 3600 * 1000
PLACE = ("t", 0)


def at(offset: int, log_offset: int, *, committed_ms: int = 0, expiry: int = -1) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", committed_ms, expiry, log_offset)


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("😀", 1772899),
    ],
)
def test_groups_are_hashed_as_in_java(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed
    assert 0 <= partition_for(text, 50) < 50


def test_the_most_negative_hash_is_partition_zero() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_an_offset_is_written_byte_for_byte_as_kafka_writes_it() -> None:
    key, value = raw(
        OffsetCommitKey(group="g", topic="t", partition=3),
        OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=1),
    )
    assert key.hex() == "0001" + "000167" + "000174" + "00000003"
    assert value is not None
    assert value.hex() == "0003" + "000000000000002a" + "00000007" + "00016d" + "0000000000000001"


def test_an_offset_with_its_own_expiry_is_written_in_the_version_that_has_it() -> None:
    _, value = raw(OffsetCommitKey(), OffsetCommitValue(offset=1, expire_timestamp=5))
    assert value is not None and value[:2] == b"\0\1"


def test_a_group_is_written_byte_for_byte_as_kafka_writes_it() -> None:
    member = MemberMetadata(
        member_id="m",
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"S",
        assignment=b"A",
    )
    key, value = raw(
        GroupMetadataKey(group="g"),
        GroupMetadataValue(
            protocol_type="consumer",
            generation=9,
            protocol="range",
            leader="m",
            current_state_timestamp=3,
            members=[member],
        ),
    )
    assert key.hex() == "0002" + "000167"
    assert value is not None
    assert value.hex() == (
        "0003" + "0008" + b"consumer".hex() + "00000009" + "0005" + b"range".hex() + "00016d" + "0000000000000003"
        "00000001" + "00016d" + "ffff" + "000163" + "00022f68" + "00000001" + "00000002" + "0000000153" + "0000000141"
    )


def test_records_of_a_later_time_are_skipped() -> None:
    assert parsed(b"\x00\x63whatever", b"\0\0") is None
    assert parsed(raw(OffsetCommitKey(), None)[0], b"\x00\x63") is None
    assert parsed(None, b"") is None


def test_a_tombstone_has_no_value() -> None:
    key, value = raw(GroupMetadataKey(group="g"), None)
    assert value is None
    assert parsed(key, None) == (GroupMetadataKey(group="g"), None)


# --- transactions ----------------------------------------------------------------------------------------------------


def test_offsets_of_a_transaction_count_once_it_commits() -> None:
    book = OffsetBook()
    book.pend(7, "g", PLACE, at(5, 1))
    assert book.get("g", PLACE) is None
    assert book.is_unstable("g", PLACE)
    assert book.complete(7, commit=True) == {"g"}
    assert book.get("g", PLACE) == at(5, 1)
    assert not book.is_unstable("g", PLACE)


def test_offsets_of_an_aborted_transaction_leave_nothing() -> None:
    book = OffsetBook()
    book.commit("g", PLACE, at(3, 0))
    book.pend(7, "g", PLACE, at(5, 1))
    book.complete(7, commit=False)
    assert book.get("g", PLACE) == at(3, 0)
    assert not book.has_pending("g")


def test_a_commit_that_came_after_the_transactions_offset_wins() -> None:
    book = OffsetBook()
    book.pend(7, "g", PLACE, at(5, 1))
    book.commit("g", PLACE, at(9, 2))
    book.complete(7, commit=True)
    assert book.get("g", PLACE) == at(9, 2)


def test_transactions_of_two_producers_do_not_touch_each_other() -> None:
    book = OffsetBook()
    book.pend(7, "g", PLACE, at(5, 1))
    book.pend(8, "g", PLACE, at(6, 2))
    book.complete(7, commit=False)
    assert book.is_unstable("g", PLACE)
    book.complete(8, commit=True)
    assert book.get("g", PLACE) == at(6, 2)


def test_a_deleted_group_forgets_what_is_pending() -> None:
    book = OffsetBook()
    book.pend(7, "g", PLACE, at(5, 1))
    book.pend(7, "h", PLACE, at(6, 2))
    book.forget_group("g")
    book.complete(7, commit=True)
    assert book.groups() == {"h"}


# --- expiry ----------------------------------------------------------------------------------------------------------


def expired(book: OffsetBook, now_ms: int, **group: object) -> list[tuple[str, int]]:
    about: dict[str, object] = {"empty_since_ms": None, "has_members": False, "subscribed": None, **group}
    return book.expired("g", now_ms, 7 * DAY_MS, **about)  # type: ignore[arg-type]


def test_an_offset_is_kept_for_the_retention_after_the_group_became_empty() -> None:
    book = OffsetBook()
    book.commit("g", PLACE, at(1, 0, committed_ms=0))
    assert expired(book, 8 * DAY_MS, empty_since_ms=2 * DAY_MS) == []
    assert expired(book, 9 * DAY_MS, empty_since_ms=2 * DAY_MS) == [PLACE]


def test_offsets_of_simple_consumers_are_kept_for_the_retention_after_the_commit() -> None:
    book = OffsetBook()
    book.commit("g", PLACE, at(1, 0, committed_ms=DAY_MS))
    assert expired(book, 8 * DAY_MS - 1) == []
    assert expired(book, 8 * DAY_MS) == [PLACE]


def test_members_keep_the_offsets_of_what_they_read_and_no_others() -> None:
    book = OffsetBook()
    book.commit("g", PLACE, at(1, 0))
    book.commit("g", ("other", 0), at(1, 1))
    assert expired(book, 90 * DAY_MS, has_members=True, subscribed={"t"}) == [("other", 0)]
    assert expired(book, 90 * DAY_MS, has_members=True, subscribed=None) == []


def test_an_offset_with_its_own_expiry_goes_then() -> None:
    book = OffsetBook()
    book.commit("g", PLACE, at(1, 0, expiry=5))
    assert expired(book, 4) == []
    assert expired(book, 5) == [PLACE]


def test_an_offset_that_a_transaction_may_still_set_stays() -> None:
    book = OffsetBook()
    book.commit("g", PLACE, at(1, 0))
    book.pend(7, "g", PLACE, at(5, 1))
    assert expired(book, 90 * DAY_MS) == []
