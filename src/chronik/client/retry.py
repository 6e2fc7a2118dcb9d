"""How long and how often to try again: every retry in the client goes through here, with a limit and a log line."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from chronik.client.errors import ConnectionFailed, GaveUp, NoBrokerReachable
from chronik.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

log = logging.getLogger(__name__)

UNKNOWN_TOPIC = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)
"""A topic that is not there may be on its way; it is waited for, but not for as long as a leader."""


_MAX_DOUBLINGS = 16


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of trying again."""

    timeout_s: float = 30.0
    """How long a retriable failure may last."""

    unknown_topic_s: float = 3.0
    """How long a topic may be unknown: news of a new one needs a moment to reach every broker."""

    first_contact_s: float = 5.0
    """How long no broker may be reachable, before the first one was reached."""

    first_pause_s: float = 0.02
    longest_pause_s: float = 1.0


class Attempts:
    """One thing tried again and again: counts, pauses, and gives up when the time is over."""

    def __init__(self, what: str, policy: RetryPolicy, *, timeout_s: float | None = None) -> None:
        self.what = what
        self._policy = policy
        self._started = time.monotonic()
        self._timeout_s = policy.timeout_s if timeout_s is None else timeout_s
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """Pause before the next attempt, or raise as `pause_after` does."""
        time.sleep(self.pause_after(error))

    def pause_after(self, error: Exception) -> float:
        """How many seconds to wait before the next attempt; raises when retrying is useless or the time is over.

        The first connection that breaks is no reason to give up, however long that took: a broker that hangs can use up
        all the time by itself, and another may have taken over. An error that a broker answered keeps its code; a
        broken connection becomes `GaveUp`.
        """
        if not is_retriable(error):
            raise error
        self._failures += 1
        spent_s = time.monotonic() - self._started
        doublings = min(self._failures - 1, _MAX_DOUBLINGS)
        pause_s = min(self._policy.first_pause_s * 2.0**doublings, self._policy.longest_pause_s)
        pause_s *= random.uniform(0.8, 1.2)
        broke_once = self._failures == 1 and isinstance(error, ConnectionFailed)
        if spent_s + pause_s > self._limit_s(error) and not broke_once:
            raise self._last_word(error, spent_s) from error.__cause__
        log.debug("%s failed %d times, trying again in %.3f s: %s", self.what, self._failures, pause_s, error)
        return pause_s

    def _limit_s(self, error: Exception) -> float:
        if isinstance(error, KafkaError) and error.code in UNKNOWN_TOPIC:
            return min(self._timeout_s, self._policy.unknown_topic_s)
        if isinstance(error, NoBrokerReachable) and not error.reached_before:
            return min(self._timeout_s, self._policy.first_contact_s)
        return self._timeout_s

    def _last_word(self, error: Exception, spent_s: float) -> Exception:
        if self._failures == 1:
            return error
        tries = f"tried {self._failures} times in {spent_s:.1f} s"
        if isinstance(error, KafkaError):
            return KafkaError(error.code, f"{error.message} ({tries})")
        return GaveUp(f"{self.what} failed, {tries}. The last time: {error}")


def retry(
    what: str,
    policy: RetryPolicy,
    attempt: Callable[[], T],
    *,
    before_next: Callable[[Exception], None] | None = None,
    timeout_s: float | None = None,
) -> T:
    """Call `attempt` until it succeeds, fails for good, or the time is over.

    `before_next` is told of each failure that will be retried, to forget what turned out to be stale.
    """
    attempts = Attempts(what, policy, timeout_s=timeout_s)
    while True:
        try:
            return attempt()
        except (KafkaError, ConnectionFailed, NoBrokerReachable) as error:
            attempts.failed(error)
            if before_next is not None:
                before_next(error)


def is_retriable(error: Exception) -> bool:
    """Whether the same attempt may succeed later, or at another broker."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, ConnectionFailed | NoBrokerReachable)
