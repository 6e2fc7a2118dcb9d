"""`docs/benchmarks-pipeline.md`: a dated section for each run, the newest first."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from pipeline_speed.throughput import CEILING, CHRONIK, KAFKA, ROWS
from pipeline_speed.workload import Load

MARK = "<!-- the newest run comes here -->"
FUSED_GOAL = 3.0
FRESHNESS_GOAL_S = 10.0


@dataclass
class Results:
    """What one run found; times in seconds, one for each round."""

    loads: tuple[Load, ...]
    seconds: dict[tuple[int, str, str], list[float]] = field(default_factory=dict)
    queries: dict[str, float] = field(default_factory=dict)
    freshness: list[float] = field(default_factory=list)

    def rate(self, load: Load, row: str, source: str) -> float | None:
        """Million rows a second, the median of the rounds."""
        found = self.seconds.get((load.value_bytes, row, source))
        return load.rows / statistics.median(found) / 1e6 if found else None


def section(results: Results, date: str, facts: list[str]) -> str:
    lines = [f"## {date}", "", *(f"- {fact}" for fact in facts), ""]
    for load in results.loads:
        lines += [
            f"### Values of {load.label}: {load.rows:,} rows, {load.megabytes:,.0f} MB",
            "",
            '| | `format("chronik")` | `format("kafka")` | Ratio |',
            "|---|---|---|---|",
        ]
        for row in ROWS:
            ours, theirs = (results.rate(load, row, source) for source in (CHRONIK, KAFKA))
            ratio = f"{ours / theirs:.2f} ×" if ours and theirs else ""
            name = f"{row} (Spark's own ceiling)" if row == CEILING else row
            cells = (_cell(results, load, row, source) for source in (CHRONIK, KAFKA))
            lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
        lines += ["", *_goals(results, load), ""]
    if results.queries:
        lines += ["### `chronik sql`, from the call to the end of the process", ""]
        lines += [f"- {name}: {seconds:.2f} s" for name, seconds in results.queries.items()]
        lines.append("")
    if results.freshness:
        delays = results.freshness
        worst = delays[-1]
        lines += [
            "### Freshness: from the acknowledgement of a record until its table has it, at the default trigger",
            "",
            f"- {len(delays)} records: median {statistics.median(delays):.2f} s, 99 % within "
            f"{delays[int((len(delays) - 1) * 0.99)]:.2f} s, longest {worst:.2f} s; goal "
            f"{FRESHNESS_GOAL_S:g} s: {'met' if worst <= FRESHNESS_GOAL_S else '**missed**'}",
            "",
        ]
    return "\n".join(lines)


def _cell(results: Results, load: Load, row: str, source: str) -> str:
    found = results.seconds.get((load.value_bytes, row, source))
    if not found:
        return "–"
    middle = statistics.median(found)
    spread = f" ({load.rows / max(found) / 1e6:.2f} – {load.rows / min(found) / 1e6:.2f})" if len(found) > 1 else ""
    return f"{load.rows / middle / 1e6:.2f} M rows/s{spread}, {load.megabytes / middle:,.0f} MB/s"


def _goals(results: Results, load: Load) -> list[str]:
    ours, theirs = (results.rate(load, ROWS[0], source) for source in (CHRONIK, KAFKA))
    fused, written = results.rate(load, ROWS[2], CHRONIK), results.rate(load, ROWS[1], KAFKA)
    if not (ours and theirs and fused and written):
        return ["Spark's Kafka connector was not there to compare with."]
    source = "met" if ours >= theirs else "**missed**"
    ingest = "met" if fused >= FUSED_GOAL * written else "**missed**"
    return [
        f"- Goal: the source at least as fast as Spark's connector: {source} ({ours / theirs:.2f} ×)",
        f"- Goal: fused ingest at {FUSED_GOAL:g} times Spark's connector writing Parquet: {ingest} "
        f"({fused / written:.2f} ×)",
    ]


def write(document: Path, text: str) -> None:
    before, mark, after = document.read_text().partition(MARK)
    if not mark:
        raise RuntimeError(f"{document} has lost the line {MARK}, behind which a run is written; put it back")
    document.write_text(f"{before}{mark}\n\n{text.rstrip()}{after}")
