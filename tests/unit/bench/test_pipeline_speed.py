"""The bench of the pipeline: values of the size they claim, and a report that says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_speed.report import MARK, Results, section, write
from pipeline_speed.throughput import CHRONIK, KAFKA, ROWS
from pipeline_speed.workload import FULL, Load, document


def test_documents_have_the_size_that_is_reported() -> None:
    for load in FULL:
        for number in (0, 2, 1_999_999):  # the third city has a letter of two bytes
            value = document(number, load.value_bytes)
            assert len(value) == load.value_bytes and json.loads(value)["id"] == number


def test_the_report_gives_rates_ratios_and_whether_the_goals_are_met() -> None:
    load = Load(100, 1_000_000)
    results = Results((load,), freshness=[0.5, 1.5, 11.0], queries={"first": 8.25})
    results.seconds = {
        (100, ROWS[0], CHRONIK): [1.0, 2.0, 4.0],
        (100, ROWS[0], KAFKA): [4.0],
        (100, ROWS[1], KAFKA): [5.0],
        (100, ROWS[2], CHRONIK): [2.0],
    }
    text = section(results, "2026-01-31", ["a fact"])
    assert "0.50 M rows/s (0.25 – 1.00), 50 MB/s | 0.25 M rows/s, 25 MB/s | 2.00 ×" in text
    assert "at least as fast as Spark's connector: met (2.00 ×)" in text
    assert "writing Parquet: **missed** (2.50 ×)" in text
    assert "median 1.50 s, 99 % within 1.50 s, longest 11.00 s; goal 10 s: **missed**" in text
    assert "- first: 8.25 s" in text and "- a fact" in text
    results.seconds = {(100, ROWS[0], CHRONIK): [1.0]}
    assert "was not there to compare with" in section(results, "2026-01-31", [])


def test_the_newest_run_comes_first_and_a_page_without_the_mark_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{MARK}\n")
    write(page, "## first\n")
    write(page, "## second\n")
    assert page.read_text() == f"# Title\n\n{MARK}\n\n## second\n\n## first\n"
    page.write_text("# Title\n")
    with pytest.raises(RuntimeError, match="has lost the line"):
        write(page, "## third\n")
    assert page.read_text() == "# Title\n"
