"""The runner of `make bench`: what foreign tools print is read right, results survive, and losses are shown."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from side_by_side import report
from side_by_side.chart import draw
from side_by_side.java_tools import ToolFailed, parse_consumer, parse_producer
from side_by_side.ledger import Entry, Ledger
from side_by_side.rows import ROWS

PRODUCER = """1756 records sent, 350.6 records/sec (0.34 MB/sec), 1741.8 ms avg latency, 2792.0 ms max latency.
100000 records sent, 4011.6 records/sec (3.92 MB/sec), 6030.45 ms avg latency, 10748.00 ms max latency, 4706 ms 50th, \
10632 ms 95th, 10704 ms 99th, 10740 ms 99.9th.
"""
CONSUMER = """start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-15 23:20:00:638, 2026-11-15 23:20:09:904, 97.6563, 10.5392, 100000, 10792.1433, 6515, 2751, 35.4985, 36350.4
"""
FACTS = report.Facts("2026-01-02", "a machine", "versions", "make bench", 3)


def test_the_summary_of_the_producer_tool_is_read() -> None:
    figures = parse_producer(PRODUCER)
    assert (figures["messages"], figures["messages_per_s"], figures["p99_ms"]) == (100_000, 4011.6, 10_704)
    assert figures["mb_per_s"] == pytest.approx(4.11, abs=0.01)


def test_the_rate_of_the_consumer_tool_leaves_out_the_rebalance() -> None:
    assert parse_consumer(CONSUMER, 100_000)["messages_per_s"] == 36350.4


def test_a_tool_that_did_not_finish_is_a_failure_and_not_a_number() -> None:
    with pytest.raises(ToolFailed, match="no summary"):
        parse_producer(PRODUCER.splitlines()[0])
    with pytest.raises(ToolFailed, match="100000 of 200000"):
        parse_consumer(CONSUMER, 200_000)


def test_an_interrupted_run_knows_what_was_measured_and_repeats_what_failed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(Entry(row="consume", system="Kafka", round=1, figures={"mb_per_s": 5}))
    ledger.add(Entry(row="consume", system="Chronik", round=1, failure="broke"))
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.has("consume", "Kafka", 1)
    assert not again.has("consume", "Chronik", 1)
    assert not again.has("consume", "Kafka", 2)


def test_the_report_shows_medians_spread_ratios_and_losses(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for number, (ours, theirs, our_cpu) in enumerate([(50.0, 100.0, 1.0), (60.0, 120.0, 2.0), (40.0, 110.0, 3.0)], 1):
        figures = {"mb_per_s": ours, "cpu_s_per_gb_out": our_cpu}
        ledger.add(Entry(row="consume", system="Chronik", round=number, figures=figures))
        figures = {"mb_per_s": theirs, "cpu_s_per_gb_out": 8.0}
        ledger.add(Entry(row="consume", system="Kafka", round=number, figures=figures))
    ledger.add(Entry(row="transactions", system="Chronik", round=1, failure="ToolFailed: 3 operations failed"))
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{report.BEGIN}\nold results\n{report.END}\nafter\n")
    report.write(document, tmp_path / "benchmarks.svg", ledger, FACTS)
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old results" not in text
    assert "| MB/s | 50 (40 – 60) | 110 (100 – 120) | 0.45 × | **behind** |" in text
    assert "| s | 2 (1 – 3) | 8 (8 – 8) | 4.00 × | ahead |" in text
    assert "failed: ToolFailed: 3 operations failed" in text
    assert "ahead in 1 figures, behind in 1" in text
    assert (tmp_path / "benchmarks.svg").exists()


def test_the_chart_is_an_image_with_a_bar_per_figure() -> None:
    picture = ElementTree.fromstring(draw([("a & b", 4.0), ("c", 0.25), ("d", 1000.0)], "title"))
    bars = [e for e in picture.iter("{http://www.w3.org/2000/svg}rect") if e.get("fill") in ("#2a7f62", "#b3442f")]
    assert [bar.get("fill") for bar in bars] == ["#2a7f62", "#b3442f", "#2a7f62"]
    assert float(bars[0].get("width") or 0) == pytest.approx(float(bars[1].get("width") or 0))


def test_every_row_has_a_name_of_its_own_and_the_quick_ones_reach_every_kind_of_client() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)
    assert {row.client for row in ROWS if row.quick} == {row.client for row in ROWS}
