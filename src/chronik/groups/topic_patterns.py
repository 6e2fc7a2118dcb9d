"""Subscriptions by regular expression, in RE2 syntax: whatever a client sends, matching takes linear time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import re2

from chronik.protocol.errors import ErrorCode, KafkaError

PATTERN_BYTES_MAX = 4096
PATTERN_MEMORY_MAX = 1 << 20
"""What RE2 may spend on one compiled pattern."""


def compile_pattern(pattern: str) -> Any:
    """Raises KafkaError(INVALID_REGULAR_EXPRESSION) with the reason."""
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"a pattern may have at most {PATTERN_BYTES_MAX} bytes; shorten it"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_MAX
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression in RE2 syntax: {reason}.",
        ) from error


def matching_topics(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the whole pattern matches."""
    compiled = compile_pattern(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)
