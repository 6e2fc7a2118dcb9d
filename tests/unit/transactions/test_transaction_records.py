"""What is written to `__transaction_state` is what Kafka writes, and is read back as it was."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.transactions.records import parsed, raw, tombstone
from chronik.transactions.state import State, Transaction

PLACES = st.tuples(st.sampled_from(["orders", "payments", "__consumer_offsets"]), st.integers(0, 60))


@given(
    st.builds(
        Transaction,
        st.text(min_size=1, max_size=40),
        st.integers(0, 2**60),
        epoch=st.integers(0, 0x7FFF),
        timeout_ms=st.integers(1, 900_000),
        state=st.sampled_from([s for s in State if s is not State.EMPTY]),
        partitions=st.frozensets(PLACES, max_size=8),
        start_ms=st.integers(-1, 2**50),
        updated_ms=st.integers(0, 2**50),
        previous_producer_id=st.integers(-1, 2**60),
        next_producer_id=st.integers(-1, 2**60),
        client_version=st.integers(0, 2),
    )
)
@settings(max_examples=100)
def test_a_transaction_is_read_back_as_it_was(txn: Transaction) -> None:
    assert parsed(*raw(txn)) == (txn.transactional_id, txn)


def test_a_tombstone_is_the_end_of_an_id() -> None:
    assert parsed(*tombstone("t")) == ("t", None)


def test_the_bytes_are_those_of_kafka() -> None:
    """Key version 0 and value version 1, as kafka-dump-log's transaction-log decoder expects them."""
    txn = Transaction(
        "pay", 4000, epoch=3, timeout_ms=60_000, state=State.ONGOING, partitions=frozenset({("o", 2)}), start_ms=5
    )
    key, value = raw(txn)
    assert key == b"\x00\x00\x00\x03pay"
    assert value is not None
    version, producer_id, epoch, timeout, status = struct.unpack_from(">hqhib", value)
    assert (version, producer_id, epoch, timeout, status) == (1, 4000, 3, 60_000, 1)
    assert value[17:] == b"\x02\x02o\x02\x00\x00\x00\x02\x00" + struct.pack(">qq", -1, 5) + b"\x00"


def test_a_value_of_version_0_is_read() -> None:
    """Kafka before 4.0 wrote these."""
    body = struct.pack(">qhib", 4000, 3, 60_000, 4) + struct.pack(">i", -1) + struct.pack(">qq", 9, 5)
    read = parsed(b"\x00\x00\x00\x03pay", b"\x00\x00" + body)
    assert read == (
        "pay",
        Transaction("pay", 4000, epoch=3, timeout_ms=60_000, state=State.COMPLETE_COMMIT, start_ms=5, updated_ms=9),
    )


@pytest.mark.parametrize("key", [None, b"", b"\x00\x07\x00\x03pay"])
def test_what_a_later_version_may_write_is_skipped(key: bytes | None) -> None:
    assert parsed(key, b"\x00\x01") is None
    assert parsed(b"\x00\x00\x00\x03pay", b"\x00\x63") is None
