"""Transactions: list and describe them, see which producers write to a partition, and end one that hangs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chronik.client.cluster import TRANSACTION, Cluster
from chronik.client.errors import error_for_code, raise_for_code
from chronik.client.metadata import Broker, TopicPartition
from chronik.client.offsets import by_topic
from chronik.client.retry import retry
from chronik.protocol.errors import KafkaError
from chronik.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from chronik.protocol.messages.transaction_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from chronik.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class TransactionListing(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


class TransactionDescription(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: list[TopicPartition]
    coordinator_id: int


def list_transactions(cluster: Cluster, *, states: Iterable[str] = ()) -> list[TransactionListing]:
    """All transactional ids of the cluster: every broker is asked for those it coordinates."""
    found: dict[str, TransactionListing] = {}
    request = ListTransactionsRequest(state_filters=list(states))

    def attempt() -> None:
        cluster.refresh()
        for broker in cluster.brokers():
            answer = cluster.call(broker, request, ListTransactionsResponse)
            raise_for_code(answer.error_code, f"listing the transactions of broker {broker.node_id}")
            for t in answer.transaction_states:
                found[t.transactional_id] = TransactionListing(
                    t.transactional_id, t.producer_id, t.transaction_state, broker.node_id
                )

    retry("listing transactions", cluster.settings.retry, attempt)
    return [listing for _, listing in sorted(found.items())]


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """The state of one transactional id; TRANSACTIONAL_ID_NOT_FOUND when the cluster does not know it."""

    def check(answer: DescribeTransactionsResponse) -> None:
        for item in answer.transaction_states:
            raise_for_code(item.error_code, f"describing transactional id {transactional_id}")

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = cluster.call_coordinator(TRANSACTION, transactional_id, request, DescribeTransactionsResponse, check=check)
    state = answer.transaction_states[0]
    return TransactionDescription(
        transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        sorted(TopicPartition(t.topic, p) for t in state.topics for p in t.partitions),
        cluster.coordinator(TRANSACTION, transactional_id).node_id,
    )


def active_producers(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
    """The producers that the leaders of partitions remember, with the start of an open transaction."""

    def ask(broker: Broker, here: list[TopicPartition]) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in by_topic(here).items()]
        )
        answer = cluster.call(broker, request, DescribeProducersResponse)
        found: dict[TopicPartition, list[ProducerState] | KafkaError] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                place = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    found[place] = error_for_code(p.error_code, f"describing producers of {place}", p.error_message)
                else:
                    found[place] = p.active_producers
        return found

    return cluster.on_leaders("describing producers", places, ask)


def abort_transaction(
    cluster: Cluster, place: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Writes an abort marker for a producer into one partition, past the coordinator.

    For a transaction that hangs there and that no coordinator knows any more.
    """
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        coordinator_epoch=coordinator_epoch,
        topics=[WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])],
    )
    what = f"aborting the transaction of producer {producer_id} in {place}"

    def ask(broker: Broker, here: list[TopicPartition]) -> dict[TopicPartition, bool | KafkaError]:
        answer = cluster.call(broker, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
        codes = [p.error_code for m in answer.markers for topic in m.topics for p in topic.partitions]
        return {place: error_for_code(codes[0], what) if codes and codes[0] else True}

    cluster.on_leaders(what, [place], ask)
