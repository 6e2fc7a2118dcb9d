"""A batch behind one that was refused for a reason that passes is refused like it, and both are taken the next time."""

from __future__ import annotations

import pytest

from chronik.broker.refused_batches import REMEMBERED_MAX, UNDER_WAY_S, RefusedBatches
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from chronik.protocol.records.header import LAST_SEQUENCE, BatchInfo, parse_batches
from unit.broker.serving import KafkaClient, ServedNode, batch_of

LACKING = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few replicas")
NOW = 100.0
BY_NAME, BY_ID = 12, 13


def batch(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> BatchInfo:
    return parse_batches(numbered(sequence, count, producer_id=producer_id, epoch=epoch))[0]


def numbered(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    values = [b"v"] * count
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


class TestWhatAConnectionRemembers:
    def test_the_batch_directly_behind_is_refused_for_the_same_reason(self) -> None:
        refused = RefusedBatches()
        refused.remember("t", 0, [batch(4, 3)], LACKING, NOW)
        error = refused.before("t", 0, batch(7), NOW)
        assert error is not None
        assert (error.code, error.message) == (LACKING.code, LACKING.message)

    @pytest.mark.parametrize(
        ("topic", "partition", "following"),
        [
            ("other", 0, batch(7)),
            ("t", 1, batch(7)),
            ("t", 0, batch(4)),
            ("t", 0, batch(8)),
            ("t", 0, batch(7, producer_id=8)),
            ("t", 0, batch(7, epoch=1)),
        ],
    )
    def test_no_other_batch_is(self, topic: str, partition: int, following: BatchInfo) -> None:
        refused = RefusedBatches()
        refused.remember("t", 0, [batch(4, 3)], LACKING, NOW)
        assert refused.before(topic, partition, following, NOW) is None

    def test_sequences_begin_at_0_again_after_the_last(self) -> None:
        refused = RefusedBatches()
        refused.remember("t", 0, [batch(LAST_SEQUENCE)], LACKING, NOW)
        assert refused.before("t", 0, batch(0), NOW) is not None

    def test_a_gap_is_a_gap_when_no_request_can_be_under_way_any_more(self) -> None:
        refused = RefusedBatches()
        refused.remember("t", 0, [batch(4)], LACKING, NOW)
        assert refused.before("t", 0, batch(5), NOW + UNDER_WAY_S - 0.001) is not None
        assert refused.before("t", 0, batch(5), NOW + UNDER_WAY_S) is None

    def test_a_reason_that_does_not_pass_is_not_passed_on(self) -> None:
        refused = RefusedBatches()
        refused.remember("t", 0, [batch(4)], KafkaError(ErrorCode.MESSAGE_TOO_LARGE), NOW)
        assert len(refused) == 0

    def test_producers_without_sequences_are_not_remembered(self) -> None:
        refused = RefusedBatches()
        refused.remember("t", 0, [parse_batches(batch_of(b"v"))[0]], LACKING, NOW)
        refused.remember("t", 0, [], LACKING, NOW)
        assert len(refused) == 0

    def test_beyond_the_limit_the_one_refused_first_is_forgotten(self) -> None:
        refused = RefusedBatches()
        for partition in range(REMEMBERED_MAX):
            refused.remember("t", partition, [batch(4)], LACKING, NOW)
        refused.remember("t", 0, [batch(4)], LACKING, NOW)  # again, so it is the newest
        refused.remember("t", REMEMBERED_MAX, [batch(4)], LACKING, NOW)
        assert len(refused) == REMEMBERED_MAX
        assert refused.before("t", 0, batch(5), NOW) is not None
        assert refused.before("t", 1, batch(5), NOW) is None


class Writer:
    """An idempotent producer of one connection."""

    def __init__(self, client: KafkaClient, version: int, topic_id: bytes) -> None:
        self._client = client
        self._version = version
        self._topic_id = topic_id if version >= BY_ID else bytes(16)
        self._name = "" if version >= BY_ID else "t"

    async def write(self, sequence: int, count: int = 1, *, epoch: int = 0) -> ErrorCode:
        data = PartitionProduceData(index=0, records=numbered(sequence, count, epoch=epoch))
        request = ProduceRequest(
            acks=1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name=self._name, topic_id=self._topic_id, partition_data=[data])],
        )
        response: ProduceResponse = await self._client.ask(request, self._version)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
@pytest.mark.parametrize("known", [True, False], ids=["a known producer", "its first batches"])
async def test_both_are_written_in_order_when_they_are_sent_again(node: ServedNode, version: int, known: bool) -> None:
    writer = Writer(await node.connect(), version, await node.create_topic("t"))
    first = 0
    if known:
        assert await writer.write(0, 5) is ErrorCode.NONE
        first = 5
    node.log("t").append_error = LACKING
    assert await writer.write(first, 2) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.log("t").append_error = None
    assert await writer.write(first + 2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert await writer.write(first + 3) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert await writer.write(first, 2) is ErrorCode.NONE
    assert await writer.write(first + 2) is ErrorCode.NONE
    assert await writer.write(first + 3) is ErrorCode.NONE
    assert [info.base_sequence for info, _ in node.log("t").batches][-3:] == [first, first + 2, first + 3]


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
async def test_it_holds_for_a_topic_that_the_node_has_not_heard_of(node: ServedNode, version: int) -> None:
    topic_id = bytes([len(node.store.image.topics) + 1]) * 16
    writer = Writer(await node.connect(), version, topic_id)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await writer.write(0) is unknown
    assert await node.create_topic("t") == topic_id
    assert await writer.write(1) is unknown
    assert await writer.write(0) is ErrorCode.NONE
    assert await writer.write(1) is ErrorCode.NONE


async def test_what_was_written_over_another_connection_meanwhile_holds_nothing_up(node: ServedNode) -> None:
    topic_id = await node.create_topic("t")
    here = Writer(await node.connect(), BY_NAME, topic_id)
    there = Writer(await node.connect(), BY_NAME, topic_id)
    node.log("t").append_error = LACKING
    assert await here.write(0) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.log("t").append_error = None
    assert await there.write(0) is ErrorCode.NONE
    assert await here.write(1) is ErrorCode.NONE


async def refused_once(node: ServedNode) -> Writer:
    """A producer whose first batch was taken and whose second was refused."""
    writer = Writer(await node.connect(), BY_NAME, await node.create_topic("t"))
    assert await writer.write(0) is ErrorCode.NONE
    node.log("t").append_error = LACKING
    assert await writer.write(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    node.log("t").append_error = None
    return writer


async def test_a_gap_that_no_refusal_explains_is_told(node: ServedNode) -> None:
    writer = await refused_once(node)
    assert await writer.write(3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_new_epoch_is_not_held_up_by_what_the_old_one_was_refused(node: ServedNode) -> None:
    writer = await refused_once(node)
    assert await writer.write(0, epoch=1) is ErrorCode.NONE
    assert await writer.write(1, epoch=1) is ErrorCode.NONE
