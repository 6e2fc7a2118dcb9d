"""The answers to Produce that are made without the codec are the codec's, byte for byte."""

from __future__ import annotations

import pytest

from chronik.broker import produce_answers
from chronik.broker.produce_answers import FIRST_VERSION_WITH_ALL_NUMBERS, ProduceAnswers
from chronik.protocol.api import APIS, ApiKey
from chronik.protocol.codec import encode_response
from chronik.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

VERSIONS = range(FIRST_VERSION_WITH_ALL_NUMBERS, APIS[ApiKey.PRODUCE].max_version + 1)


def said(
    name: str = "orders", topic_id: bytes = bytes(range(16)), index: int = 3, base_offset: int = 0, time_ms: int = -1
) -> TopicProduceResponse:
    answer = PartitionProduceResponse(
        index=index, base_offset=base_offset, log_append_time_ms=time_ms, log_start_offset=base_offset // 2
    )
    return TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[answer])


def encoded(version: int, correlation_id: int, topic: TopicProduceResponse) -> bytes:
    return b"".join(encode_response(ProduceResponse(responses=[topic]), version, correlation_id))


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_what_the_codec_makes(version: int) -> None:
    answers = ProduceAnswers()
    for correlation_id, topic in enumerate(
        [
            said(),
            said(base_offset=17, time_ms=1_700_000_000_000),
            said(base_offset=2**40),
            said(index=4),
            said(name="payments", topic_id=bytes(16)),
            said(name="ö" * 100, topic_id=b"\xff" * 16),
            said(),
        ]
    ):
        assert answers.frame(version, correlation_id, topic) == encoded(version, correlation_id, topic)


def test_an_answer_is_not_changed_by_the_next() -> None:
    answers = ProduceAnswers()
    first = answers.frame(9, 1, said(base_offset=1))
    answers.frame(9, 2, said(base_offset=2))
    assert first == encoded(9, 1, said(base_offset=1))


def test_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_answers, "KEPT_MAX", 10)
    answers = ProduceAnswers()
    for index in range(35):
        assert answers.frame(9, index, said(index=index)) == encoded(9, index, said(index=index))
        assert len(answers) <= 10
