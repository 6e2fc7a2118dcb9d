"""What a person is told when a query fails: what is wrong and where in the SQL, without Java."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

NO_SUCH_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
"""The name that Spark gives to the error."""

_PLAN = re.compile(r"^\s*(['+:]|\w+ \[|Project|Filter|Aggregate|Relation|SubqueryAlias|Sort|Join|GlobalLimit)")
_PYTHON_FAILURE = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|DataLoss|GaveUp|Failed|Range)): (.*)$")
_SQL_SHOWN = re.compile(r"^== SQL\b.*==$")
_CARET = re.compile(r"^[-\s]*\^+\s*$")
_FROM_JAVA = "An error occurred while calling "
_JAVA_FAILURE = re.compile(r"^(?:: |Caused by: )?.*?\b[\w.$]+(?:Exception|Error): (.*\S)")
_CONDITION = re.compile(r"(\[[A-Z][A-Z0-9_.]*\] .*)")
_MISSING = re.compile(r"The table or view (.+?) cannot be found.*?(;? \(?line \d+,? pos \d+\)?)", re.DOTALL)
_JAVA = ("JVM stacktrace", "at org.", "at java.", "Caused by", "Driver stacktrace")
_MAX_LINES = 12
_LINES_BEFORE_CARET = 3


def explain(error: BaseException) -> str:
    """The message of a failure of Spark's, cut down to what helps."""
    text = str(error)
    for line in reversed(text.splitlines()):
        found = _PYTHON_FAILURE.match(line.strip())
        if found and "Traceback" in text:
            return found.group(2).strip()
    missing = _MISSING.search(text)
    if missing and text.startswith(f"[{NO_SUCH_TABLE}"):
        return f"[{NO_SUCH_TABLE}] There is no topic, table or view {missing[1]}{missing[2]}"
    lines = text.splitlines()
    if text.startswith(_FROM_JAVA):
        lines = _cause(lines)
    begin = next((index for index, line in enumerate(lines) if _SQL_SHOWN.match(line)), len(lines))
    told = [*_without_java_and_plans(lines[:begin]), *_around_the_caret(lines[begin:])]
    return "\n".join(told[:_MAX_LINES]).strip() or type(error).__name__


def _cause(lines: Sequence[str]) -> list[str]:
    """What a failure of Java comes from in the end, and what Spark says about it: the rest is how it came here."""
    found = [(index, failure[1]) for index, line in enumerate(lines) if (failure := _JAVA_FAILURE.match(line))]
    named = [(index, condition[1]) for index, said in found if (condition := _CONDITION.search(said))]
    if not found:
        return list(lines)
    index, said = (named or found)[-1]
    rest = itertools.takewhile(
        lambda line: not line.strip().startswith(("at ", "...", "Caused by")), lines[index + 1 :]
    )
    return [said, *rest]


def _without_java_and_plans(lines: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if line.strip().startswith(_JAVA):
            break
        if kept and _PLAN.match(line) and "==" not in line and "^" not in line:
            break
        if line.strip():
            kept.append(line.rstrip().removesuffix(";"))
    return kept


def _around_the_caret(lines: Sequence[str]) -> list[str]:
    """Of the SQL that Spark repeats, the lines that lead to the place it points at."""
    caret = next((index for index, line in enumerate(lines) if _CARET.match(line)), None)
    if caret is None:
        return []
    before = [line.rstrip() for line in lines[1:caret] if line.strip()]
    return [lines[0], *before[-_LINES_BEFORE_CARET:], lines[caret].rstrip()]
