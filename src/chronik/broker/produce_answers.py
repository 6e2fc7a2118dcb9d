"""The commonest answer to Produce, made without the codec: one partition, and no error.

Of two such answers for a partition only the correlation id and three numbers differ. So the codec makes the first one,
and those that follow are copies of it with other numbers.
"""

from __future__ import annotations

from struct import Struct

from chronik.protocol.codec import encode_response
from chronik.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

FIRST_VERSION_WITH_ALL_NUMBERS = 5
"""Earlier versions do not carry where the log starts, and go the usual way."""

KEPT_MAX = 4096
"""Answers kept; a node whose clients write to more partitions than that makes some of them anew."""

_CORRELATION_ID = Struct(">i")
_CORRELATION_ID_POSITION = 4
_NUMBERS = Struct(">qqq")  # base offset, log append time, log start offset
_MARKS = (-0x0123456789ABCDEF, -0x123456789ABCDEF0, -0x23456789ABCDEF01)


class ProduceAnswers:
    """Answers of all partitions, by the version and the name or id under which the client knows the topic."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, bytes, int], tuple[bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def frame(self, version: int, correlation_id: int, topic: TopicProduceResponse) -> bytearray:
        """The whole answer that says of the one partition of `topic` what its response does."""
        said = topic.partition_responses[0]
        key = (version, topic.name, topic.topic_id, said.index)
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = self._kept[key] = _make(version, topic.name, topic.topic_id, said.index)
        answer, numbers_at = kept
        frame = bytearray(answer)
        _CORRELATION_ID.pack_into(frame, _CORRELATION_ID_POSITION, correlation_id)
        _NUMBERS.pack_into(frame, numbers_at, said.base_offset, said.log_append_time_ms, said.log_start_offset)
        return frame


def _make(version: int, name: str, topic_id: bytes, index: int) -> tuple[bytes, int]:
    """An answer, and where in it the numbers are: where the codec put those that nothing else looks like."""
    base_offset, log_append_time_ms, log_start_offset = _MARKS
    said = PartitionProduceResponse(
        index=index,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[said])
    answer = b"".join(encode_response(ProduceResponse(responses=[topic]), version, 0))
    return answer, answer.index(_NUMBERS.pack(*_MARKS))
