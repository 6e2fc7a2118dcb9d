"""Messages are due on their schedule, whatever the broker does."""

from __future__ import annotations

import pytest

from chronik.bench.arrivals import AsFastAsPossible, AtRate, Due

MS = 1_000_000


def test_a_batch_waits_for_its_linger_time() -> None:
    arrivals = AtRate(1000, 0, max_records=16, linger_ns=5 * MS)
    assert arrivals.take(4 * MS) is None
    assert arrivals.take(5 * MS) == Due(6, 0, MS)


def test_a_full_batch_does_not_wait() -> None:
    arrivals = AtRate(1000, 0, max_records=3, linger_ns=100 * MS)
    assert arrivals.take(2 * MS) == Due(3, 0, MS)
    assert arrivals.next_at_ns() == 5 * MS


def test_after_a_stall_messages_count_from_when_they_were_due() -> None:
    arrivals = AtRate(1000, 0, max_records=4, linger_ns=0)
    assert arrivals.take(0) == Due(1, 0, MS)
    stalled_until = 1000 * MS
    assert arrivals.take(stalled_until) == Due(4, 1 * MS, MS)
    assert arrivals.take(stalled_until) == Due(4, 5 * MS, MS)


def test_what_was_due_and_never_sent_is_known_at_the_end() -> None:
    arrivals = AtRate(1000, 0, max_records=4, linger_ns=0)
    arrivals.take(3 * MS)
    assert arrivals.untaken(10 * MS) == Due(6, 4 * MS, MS)


def test_a_message_that_waits_for_its_batch_is_not_late() -> None:
    arrivals = AtRate(1000, 0, max_records=16, linger_ns=5 * MS)
    assert arrivals.take(5 * MS) is not None
    assert arrivals.untaken(10 * MS) is None


def test_without_a_rate_a_full_batch_is_always_due() -> None:
    arrivals = AsFastAsPossible(7)
    assert arrivals.take(42) == Due(7, 42, 0)
    assert arrivals.untaken(10**12) is None


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        AtRate(0, 0, 1, 0)
