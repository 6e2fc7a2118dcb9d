"""`docs/benchmarks.md`: the results between two marks, all else as a person wrote it; and the chart beside it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from side_by_side.chart import draw
from side_by_side.ledger import Ledger
from side_by_side.rows import ENVIRONMENTS, ROWS, Figure, Row

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
EVEN = 0.05
"""Within five per cent of each other two results are called even."""

OURS, THEIRS = "Chronik", "Kafka"
_FINE_BELOW = 100


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader has to know about the run."""

    date: str
    machine: str
    versions: str
    command: str
    rounds: int
    notes: tuple[str, ...] = ()


def write(document: Path, chart: Path, ledger: Ledger, facts: Facts) -> None:
    text = document.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    bars = [(f"{_name(row, figure)} ({row.client}; {row.environment.name})", r) for row, figure, r in _ratios(ledger)]
    picture = f"![Chronik beside Kafka]({chart.name})\n\n" if bars else ""
    if bars:
        chart.write_text(draw(bars, f"Chronik beside Apache Kafka: times better, {facts.date}"))
    document.write_text(f"{before}{BEGIN}\n{_results(ledger, facts)}\n{picture}{END}{after}")


def _results(ledger: Ledger, facts: Facts) -> str:
    loads = [entry.load_1m for entry in ledger] or [0.0]
    times = sorted(entry.at for entry in ledger if entry.at) or [""]
    lines = [
        f"Measured {facts.date}, from {times[0]} to {times[-1]} UTC, with `{facts.command}` ({facts.rounds} round(s)).",
        "",
        f"- Machine: {facts.machine}",
        f"- Versions: {facts.versions}",
        f"- Load average before the measurements: {min(loads):.2f} to {max(loads):.2f} (the row before included).",
        *(f"- {note}" for note in facts.notes),
        "",
    ]
    ahead, behind, even = _count(ledger)
    if ahead or behind or even:
        lines += [f"Chronik is ahead in {ahead} figures, behind in {behind}, even (within 5 %) in {even}.", ""]
    for environment in ENVIRONMENTS:
        rows = [row for row in ROWS if row.environment == environment and _measured(ledger, row)]
        if not rows:
            continue
        beside = "Kafka's defaults" if environment.durability == "os" else "Kafka at `flush.messages=1`"
        lines += [f"### {environment.name.capitalize()} durability, beside {beside}", ""]
        lines += ["| What | Client | Unit | Chronik | Kafka | Ratio | |", "|---|---|---|---|---|---|---|"]
        for row in rows:
            lines += [_line(ledger, row, figure) for figure in row.figures]
        lines.append("")
    return "\n".join(lines)


def _line(ledger: Ledger, row: Row, figure: Figure) -> str:
    ours, theirs = (_cell(ledger, row, system, figure) for system in (OURS, THEIRS))
    ratio = ratio_of(ledger, row, figure)
    shown = "" if ratio is None else f"{ratio:.2f} ×"
    return f"| {_name(row, figure)} | {row.client} | {figure.unit} | {ours} | {theirs} | {shown} | {_verdict(ratio)} |"


def _cell(ledger: Ledger, row: Row, system: str, figure: Figure) -> str:
    values = ledger.values(row.key, system, figure.key)
    if not values:
        failure = ledger.failure(row.key, system)
        return f"failed: {failure.splitlines()[0][:80]}" if failure else "–"
    middle = _number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))} – {_number(max(values))})"


def ratio_of(ledger: Ledger, row: Row, figure: Figure) -> float | None:
    """How many times better Chronik is; below 1 it is worse."""
    ours, theirs = (ledger.values(row.key, system, figure.key) for system in (OURS, THEIRS))
    if not ours or not theirs:
        return None
    mine, other = statistics.median(ours), statistics.median(theirs)
    if not mine or not other:
        return None
    return mine / other if figure.higher_is_better else other / mine


def _ratios(ledger: Ledger) -> list[tuple[Row, Figure, float]]:
    return [
        (row, figure, ratio)
        for row in ROWS
        for figure in row.figures
        if (ratio := ratio_of(ledger, row, figure)) is not None
    ]


def _count(ledger: Ledger) -> tuple[int, int, int]:
    verdicts = [_verdict(ratio) for _, _, ratio in _ratios(ledger)]
    return verdicts.count("ahead"), verdicts.count("**behind**"), verdicts.count("even")


def _verdict(ratio: float | None) -> str:
    if ratio is None:
        return ""
    if abs(ratio - 1) <= EVEN:
        return "even"
    return "ahead" if ratio > 1 else "**behind**"


def _measured(ledger: Ledger, row: Row) -> bool:
    return any(entry.row == row.key for entry in ledger)


def _name(row: Row, figure: Figure) -> str:
    return f"{row.title}: {figure.title}" if figure.title else row.title


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _FINE_BELOW else f"{value:.3g}"
