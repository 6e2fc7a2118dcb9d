"""Single requests to one node, exactly as given: nothing is retried, no leader is looked for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from chronik.client.connection import Connection, ConnectionSettings
from chronik.client.errors import ClientError
from chronik.protocol.codec import Message
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from chronik.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from chronik.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chronik.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from chronik.protocol.records import Record, build_batch, parse_batches, read_records
from harness.node_process import NodeProcess

R = TypeVar("R", bound=Message)
NEWEST_WITH_TOPIC_NAMES = 12


@dataclass(frozen=True)
class Produced:
    error: ErrorCode
    offset: int


@dataclass(frozen=True)
class Fetched:
    error: ErrorCode
    high_watermark: int
    values: list[bytes]


@dataclass(frozen=True)
class PartitionView:
    error: ErrorCode
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class OneNode:
    """One connection to one node. A connection that fails raises OSError."""

    def __init__(self, node: NodeProcess, *, timeout_s: float = 10.0) -> None:
        self.node = node
        try:
            self._connection = Connection("127.0.0.1", node.kafka_port, ConnectionSettings(request_timeout_s=timeout_s))
        except ClientError as error:
            raise OSError(str(error)) from error

    def __enter__(self) -> OneNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _call(self, request: Message, response: type[R], newest: int | None = None) -> R:
        try:
            return self._connection.call(request, response, newest=newest)
        except ClientError as error:
            raise OSError(f"node {self.node.node_id}: {error}") from error

    def produce(self, topic: str, partition: int, value: bytes, *, acks: int = -1, timeout_ms: int = 3000) -> Produced:
        batch = build_batch([Record(0, int(time.time() * 1000), None, value)])
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
        answer = self._call(request, ProduceResponse, NEWEST_WITH_TOPIC_NAMES).responses[0].partition_responses[0]
        return Produced(ErrorCode(answer.error_code), answer.base_offset)

    def fetch(self, topic: str, partition: int, offset: int = 0, *, max_wait_ms: int = 0) -> Fetched:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 24)
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )
        answer = self._call(request, FetchResponse, NEWEST_WITH_TOPIC_NAMES).responses[0].partitions[0]
        records = bytes(answer.records or b"")
        values = [
            record.value or b""
            for batch in parse_batches(records, allow_partial=True)
            for record in read_records(memoryview(records)[batch.position :])
        ]
        return Fetched(ErrorCode(answer.error_code), answer.high_watermark, values)

    def delete(self, topic: str, partition: int, before: int, *, timeout_ms: int = 5000) -> tuple[ErrorCode, int]:
        """Forgets the records before an offset; tells where the log starts then."""
        asked = DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=before)]
        )
        request = DeleteRecordsRequest(topics=[asked], timeout_ms=timeout_ms)
        answer = self._call(request, DeleteRecordsResponse).topics[0].partitions[0]
        return ErrorCode(answer.error_code), answer.low_watermark

    def partition(self, topic: str, partition: int = 0, *, create: bool = False) -> PartitionView:
        """What this node says about a partition."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=create)
        (found,) = self._call(request, MetadataResponse).topics
        if found.error_code or partition >= len(found.partitions):
            error = ErrorCode(found.error_code) if found.error_code else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return PartitionView(error, -1, -1, (), ())
        view = next(each for each in found.partitions if each.partition_index == partition)
        return PartitionView(
            ErrorCode(view.error_code),
            view.leader_id,
            view.leader_epoch,
            tuple(view.replica_nodes),
            tuple(sorted(view.isr_nodes)),
        )

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 3,
        replicas: list[int] | None = None,
        timeout_ms: int = 5000,
        **configs: str,
    ) -> CreatableTopicResult:
        """Asks once; `replicas` places the only partition. Settings are given with underscores for dots."""
        wanted = CreatableTopic(
            name=topic,
            num_partitions=-1 if replicas else partitions,
            replication_factor=-1 if replicas else replication,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)] if replicas else [],
            configs=[CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=timeout_ms)
        return self._call(request, CreateTopicsResponse).topics[0]
