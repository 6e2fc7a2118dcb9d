"""A result has the numbers that scripts look for, and a table that a person can read."""

from __future__ import annotations

import msgspec

from chronik.bench.result import BrokerUse, result_of, rows_of
from chronik.bench.tally import Tally


def tally(messages: int, latency_ns: int) -> Tally:
    made = Tally(messages=messages, message_bytes=messages * 1000, duration_s=2.0, cpu_s=1.0)
    made.latency.record(latency_ns, messages)
    return made


def test_rates_are_those_of_all_workers_together() -> None:
    together = tally(1000, 1_000_000)
    together.add(tally(3000, 2_000_000))
    result = result_of("produce", together, latency_of="acknowledged", processes=2)
    assert (result.messages_per_s, result.mb_per_s) == (2000, 2.0)
    assert result.p99_ms == 2.0
    assert result.client_cores == 0.5


def test_the_json_has_the_fields_that_scripts_rely_on() -> None:
    document = msgspec.to_builtins(result_of("produce", tally(10, 1), latency_of="acknowledged"))
    assert {"messages_per_s", "mb_per_s", "p50_ms", "p99_ms", "errors"} <= document.keys()


def test_errors_are_named_and_a_busy_client_is_pointed_out() -> None:
    counted = tally(10, 1)
    counted.failed("NOT_LEADER_OR_FOLLOWER", 3)
    counted.cpu_s = 2.0
    result = result_of("produce", counted, latency_of="acknowledged")
    result.brokers = BrokerUse(1, 0.5, 40.0)
    rows = dict(rows_of(result))
    assert rows["errors"] == "3 (NOT_LEADER_OR_FOLLOWER: 3)"
    assert "the client may be the limit" in rows["load generator"]
    assert rows["broker CPU"].startswith("0.50 s")
