"""What a person is told when a query fails: what is wrong and where in the SQL, without Java."""

from __future__ import annotations

import re

_PLAN = re.compile(r"^\s*(['+:]|\w+ \[|Project|Filter|Aggregate|Relation|SubqueryAlias|Sort|Join|GlobalLimit)")
_PYTHON_FAILURE = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|DataLoss|GaveUp|Failed|Range)): (.*)$")
_MAX_LINES = 12


def explain(error: BaseException) -> str:
    """The message of a failure of Spark's, cut down to what helps."""
    text = str(error)
    for line in reversed(text.splitlines()):
        found = _PYTHON_FAILURE.match(line.strip())
        if found and "Traceback" in text:
            return found.group(2).strip()
    kept: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith(("JVM stacktrace", "at org.", "at java.", "Caused by", "Driver stacktrace")):
            break
        if kept and _PLAN.match(line) and "==" not in line and "^" not in line:
            break
        kept.append(line.rstrip().removesuffix(";"))
    while kept and not kept[-1].strip():
        kept.pop()
    return "\n".join(kept[:_MAX_LINES]).strip() or type(error).__name__
