"""Incremental fetch sessions (KIP-227): what a consumer fetches is remembered, so that requests carry only changes.

What lives here: the sessions, their bounded cache, and what changed since the last answer. What does not: reading and
answering (handlers/fetch.py).

Rules:
1. Epoch -1 asks for no session and closes the one it names. Epoch 0 asks for a new one. A higher epoch continues one,
   and must be the one after the last.
2. When the cache is full, a session unused for EVICTION_IDLE_S gives way; else the client is served without a session.
3. A session names topics either by name or by id, never both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from time import monotonic

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData

SESSIONS_MAX = 1000
"""Kafka's default of max.incremental.fetch.session.cache.slots."""

PARTITIONS_PER_SESSION_MAX = 100_000
EVICTION_IDLE_S = 120.0
"""Kafka's min.incremental.fetch.session.eviction.ms."""

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCH_LIMIT = 2**31 - 1
FIRST_VERSION_WITH_TOPIC_IDS = 13

Key = tuple[bytes, str, int]


class Wanted:
    """One partition that a fetch asks for, and what its session has told the client about it."""

    __slots__ = ("asked", "high_watermark", "log_start_offset", "name", "told", "topic_id")

    def __init__(self, name: str, topic_id: bytes, asked: FetchPartition) -> None:
        self.name = name
        self.topic_id = topic_id
        self.asked = asked
        self.told = False
        self.high_watermark = -1
        self.log_start_offset = -1

    def is_news(self, data: PartitionData) -> bool:
        """Whether an incremental answer has to mention this partition; notes what the client will know."""
        news = (
            not self.told
            or data.error_code != 0
            or bool(data.records)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.diverging_epoch is not None
        )
        self.told = data.error_code == 0  # after an error the next answer is complete again
        self.high_watermark = data.high_watermark
        self.log_start_offset = data.log_start_offset
        return news


class FetchSession:
    """The partitions of one consumer, in the order in which they are served: who got data goes to the end."""

    __slots__ = ("by_id", "epoch", "id", "last_used", "partitions")

    def __init__(self, session_id: int, by_id: bool, now: float) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.last_used = now
        self.partitions: dict[Key, Wanted] = {}

    def update(self, request: FetchRequest) -> None:
        """Take in what the request adds, changes and forgets."""
        for wanted in wanted_of(request):
            key = (wanted.topic_id, wanted.name, wanted.asked.partition)
            known = self.partitions.get(key)
            if known is not None:
                known.asked = wanted.asked
            else:
                self.partitions[key] = wanted
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                self.partitions.pop((topic.topic_id, topic.topic, partition), None)

    def served(self, wanted: Wanted) -> None:
        """Put a partition that got data behind the others."""
        key = (wanted.topic_id, wanted.name, wanted.asked.partition)
        known = self.partitions.pop(key, None)
        if known is not None:
            self.partitions[key] = known


class FetchSessions:
    """The bounded cache of sessions of one node."""

    def __init__(self, limit: int = SESSIONS_MAX, clock: Callable[[], float] = monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, version: int) -> tuple[FetchSession | None, bool]:
        """The session of this request, and whether only changes are to be answered. Raises KafkaError (Rule 1)."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._sessions.pop(request.session_id, None)
            if request.session_epoch == FINAL_EPOCH:
                return None, False
            return self._begin(request, version), False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "The fetch session ID was not found.")
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, "The fetch session epoch is invalid.")
        if session.by_id != (version >= FIRST_VERSION_WITH_TOPIC_IDS):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "The fetch session encountered inconsistent topic ID usage",
            )
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_LIMIT else 1
        session.last_used = self._clock()
        self._sessions[session.id] = self._sessions.pop(session.id)
        session.update(request)
        if not 0 < len(session.partitions) <= PARTITIONS_PER_SESSION_MAX:
            self.close(session)  # this request is served; its answer says that the session is over
        return session, True

    def close(self, session: FetchSession) -> None:
        self._sessions.pop(session.id, None)

    def is_open(self, session: FetchSession) -> bool:
        return self._sessions.get(session.id) is session

    def _begin(self, request: FetchRequest, version: int) -> FetchSession | None:
        now = self._clock()
        asked = sum(len(topic.partitions) for topic in request.topics)
        if not 0 < asked <= PARTITIONS_PER_SESSION_MAX or not self._make_room(now):
            return None
        session_id = random.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = random.randrange(1, 2**31)
        session = FetchSession(session_id, version >= FIRST_VERSION_WITH_TOPIC_IDS, now)
        session.update(request)
        self._sessions[session_id] = session
        return session

    def _make_room(self, now: float) -> bool:
        if len(self._sessions) < self._limit:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < EVICTION_IDLE_S:
            return False
        del self._sessions[oldest.id]
        return True


def wanted_of(request: FetchRequest) -> Iterator[Wanted]:
    """The partitions that the request itself names, in its order."""
    for topic in request.topics:
        for asked in topic.partitions:
            yield Wanted(topic.topic, topic.topic_id, asked)
