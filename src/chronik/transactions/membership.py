"""Partition leaders and the coordinator: is this producer's transaction open, and does it include this partition?

A leader asks before it appends the first batch of a transaction. For clients of KIP-890 the question is also the
request to join; for older ones, which joined by AddPartitionsToTxn, it is only a question. The coordinator may be on
this node or on another: the request between nodes is AddPartitionsToTxn, in its form for brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from chronik.protocol.codec import decode, encode
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from chronik.transactions.state import KIP_890, Place

if TYPE_CHECKING:
    from chronik.transactions.coordinator import TransactionCoordinator
    from chronik.transactions.marker_delivery import Peers

log = structlog.get_logger()

PARTITIONS = "txn_partitions"
"""The request between nodes: AddPartitionsToTxn as Kafka encodes it."""
WIRE_VERSION = 5
REQUEST_TIMEOUT_S = 3.0


class Membership:
    """Asks the coordinators of transactions, here or elsewhere, and answers for those that are here."""

    def __init__(self, node_id: int, coordinator: TransactionCoordinator, peers: Peers) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._peers = peers
        peers.serve(PARTITIONS, self._serve)

    async def ask(
        self, transactional_id: str, producer_id: int, epoch: int, places: Iterable[Place], *, join: bool
    ) -> dict[Place, ErrorCode]:
        """What the coordinator says about each place; errors of the way there are among them."""
        asked = list(places)
        broker = self._coordinator.coordinator_of(transactional_id)
        if broker is None:
            return dict.fromkeys(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=not join,
            topics=_by_topic(asked),
        )
        if broker.node_id == self._node_id:
            return await self.decide(transaction)
        request = encode(AddPartitionsToTxnRequest(transactions=[transaction]), WIRE_VERSION)
        try:
            payload = await self._peers.request(broker.node_id, PARTITIONS, request, timeout_s=REQUEST_TIMEOUT_S)
            response = decode(AddPartitionsToTxnResponse, WIRE_VERSION, payload)
        except Exception as error:
            log.info(
                "the coordinator of a transaction did not answer",
                node=broker.node_id,
                transactional_id=transactional_id,
                reason=str(error),
            )
            return dict.fromkeys(asked, ErrorCode.NETWORK_EXCEPTION)
        codes = dict.fromkeys(asked, ErrorCode.UNKNOWN_SERVER_ERROR)
        for result in response.results_by_transaction:
            for topic in result.topic_results:
                for answer in topic.results_by_partition:
                    codes[topic.name, answer.partition_index] = ErrorCode(answer.partition_error_code)
        return codes

    async def decide(self, transaction: AddPartitionsToTxnTransaction) -> dict[Place, ErrorCode]:
        """The answer of this node's coordinator about one transaction."""
        places = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
        who = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
        try:
            if transaction.verify_only:
                return await self._coordinator.verify_partitions(*who, places)
            await self._coordinator.add_partitions(*who, places, KIP_890)
        except KafkaError as error:
            return dict.fromkeys(places, error.code)
        return dict.fromkeys(places, ErrorCode.NONE)

    async def _serve(self, peer: int, payload: bytes) -> bytes:
        request = decode(AddPartitionsToTxnRequest, WIRE_VERSION, payload)
        results = [
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=topic_results(await self.decide(transaction)),
            )
            for transaction in request.transactions
        ]
        return encode(AddPartitionsToTxnResponse(results_by_transaction=results), WIRE_VERSION)


def _by_topic(places: Iterable[Place]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    return [AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()]


def topic_results(codes: dict[Place, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    """Codes per place as AddPartitionsToTxn answers them."""
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        )
    return [
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=answers) for topic, answers in topics.items()
    ]
