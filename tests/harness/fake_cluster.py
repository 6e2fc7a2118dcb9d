"""A Kafka cluster made of threads and lists, in this process: enough of one to test a client against, faults included.

Every node listens on a port of its own and shares the state of the others. What a node offers (`offer`), what it
answers wrongly (`fail`), and when it hangs up (`hang_up`) can be set by a test; `journal` holds what was asked.
Groups are scripted answers, not coordinated; nothing is on disk.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from chronik.protocol.api import APIS, ApiKey, request_class
from chronik.protocol.codec import Message, decode, decode_request_header, encode, encode_response
from chronik.protocol.errors import ErrorCode
from chronik.protocol.messages import (
    api_versions,
    cluster,
    configs,
    coordinators,
    delete_records,
    fetch,
    list_offsets,
    metadata,
    produce,
    producers,
    topics,
)
from chronik.protocol.records import parse_batches, parse_header, read_records, stamp

LONG_AGO = -2
NOW = -1


@dataclass
class FakePartition:
    leader: int
    epoch: int = 0
    start: int = 0
    batches: list[bytes] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)
    stable: int | None = None
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset if self.batches else 0

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Append one batch as a leader does: offsets and epoch are stamped, a repeated sequence is recognised."""
        (info,) = parse_batches(data)
        last = self.sequences.get(info.producer_id)
        if info.producer_id >= 0 and last is not None and last[0] == info.base_sequence:
            return last[1]
        stamped = bytearray(data)
        base = self.end
        stamp(stamped, 0, base, self.epoch)
        self.batches.append(bytes(stamped))
        if info.producer_id >= 0 and not info.is_control:
            self.sequences[info.producer_id] = (info.base_sequence, base)
        return base


@dataclass
class FakeTopic:
    topic_id: bytes
    partitions: list[FakePartition]
    configs: dict[str, str] = field(default_factory=dict)


class FakeCluster:
    """Nodes 1 to `size`; node 1 is the controller."""

    def __init__(self, size: int = 1) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, FakeTopic] = {}
        self.controller = 1
        self.auto_create = False
        self.give_topic_ids = True
        self.journal: list[tuple[int, ApiKey, int, Message]] = []
        self.offered = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
        self.scripts: dict[ApiKey, Callable[[Any], Message]] = {}
        self._faults: dict[ApiKey, deque[int]] = {}
        self._hang_ups: dict[ApiKey, deque[bool]] = {}
        self._producer_ids = 4000
        self.nodes = {node_id: FakeNode(self, node_id) for node_id in range(1, size + 1)}

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def create(self, name: str, partitions: int = 1) -> FakeTopic:
        nodes = sorted(self.nodes)
        topic = FakeTopic(
            uuid.uuid4().bytes, [FakePartition(leader=nodes[index % len(nodes)]) for index in range(partitions)]
        )
        self.topics[name] = topic
        return topic

    def move_leader(self, name: str, partition: int, node_id: int) -> None:
        with self.changed:
            place = self.topics[name].partitions[partition]
            place.leader = node_id
            place.epoch += 1
            self.changed.notify_all()

    def offer(self, key: ApiKey, low: int, high: int) -> None:
        self.offered[key] = (low, high)

    def fail(self, key: ApiKey, code: ErrorCode, times: int = 1) -> None:
        """Answer the next requests of an API with an error; per partition or item where the API has those."""
        self._faults.setdefault(key, deque()).extend([int(code)] * times)

    def hang_up(self, key: ApiKey, *, after_work: bool = False) -> None:
        """Close the connection on the next request of an API instead of answering; maybe after doing what it asks."""
        self._hang_ups.setdefault(key, deque()).append(after_work)

    def asked(self, key: ApiKey) -> list[Message]:
        return [message for _, asked, _, message in self.journal if asked == key]

    def versions_used(self, key: ApiKey) -> set[int]:
        return {version for _, asked, version, _ in self.journal if asked == key}

    # -- answering ----------------------------------------------------------------------------------------------------

    def answer(self, node_id: int, key: ApiKey, version: int, request: Message) -> Message | None:
        """The response to a request, or None to hang up."""
        self.journal.append((node_id, key, version, request))
        hang_ups = self._hang_ups.get(key)
        after_work = hang_ups.popleft() if hang_ups else None
        if after_work is False:
            return None
        faults = self._faults.get(key)
        code = faults.popleft() if faults else 0
        if key in self.scripts:
            response = self.scripts[key](request)
        else:
            handler = cast(Callable[[int, Any, int], Message], getattr(self, f"_{APIS[key].name}"))
            response = handler(node_id, request, code)
        return None if after_work else response

    def _Metadata(self, node_id: int, request: metadata.MetadataRequest, code: int) -> Message:
        asked = [t.name or "" for t in request.topics] if request.topics is not None else list(self.topics)
        for name in asked:
            if name not in self.topics and self.auto_create and request.allow_auto_topic_creation:
                self.create(name)
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=node.node_id, host="127.0.0.1", port=node.port)
                for node in self.nodes.values()
                if node.advertised
            ],
            cluster_id="fake",
            controller_id=self.controller,
            topics=[self._described(name, code) for name in asked],
        )

    def _described(self, name: str, code: int) -> metadata.MetadataResponseTopic:
        topic = self.topics.get(name)
        if topic is None or code:
            return metadata.MetadataResponseTopic(name=name, error_code=code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return metadata.MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id if self.give_topic_ids else bytes(16),
            is_internal=name.startswith("__"),
            partitions=[
                metadata.MetadataResponsePartition(
                    partition_index=index,
                    leader_id=p.leader,
                    leader_epoch=p.epoch,
                    replica_nodes=sorted(self.nodes),
                    isr_nodes=sorted(self.nodes),
                    error_code=0 if p.leader in self.nodes else ErrorCode.LEADER_NOT_AVAILABLE,
                )
                for index, p in enumerate(topic.partitions)
            ],
        )

    def _find(self, node_id: int, name: str, topic_id: bytes, index: int) -> tuple[FakePartition | None, int]:
        for known, topic in self.topics.items():
            if name == known or (not name and topic_id == topic.topic_id):
                if index >= len(topic.partitions):
                    break
                partition = topic.partitions[index]
                return partition, 0 if partition.leader == node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID

    def _Produce(self, node_id: int, request: produce.ProduceRequest, code: int) -> Message:
        responses = []
        with self.changed:
            for topic in request.topic_data:
                answers = []
                for data in topic.partition_data:
                    partition, error = self._find(node_id, topic.name, topic.topic_id, data.index)
                    error = code or error
                    base = -1
                    if partition is not None and not error:
                        base = partition.append(cast(memoryview, data.records))
                    answers.append(
                        produce.PartitionProduceResponse(index=data.index, error_code=error, base_offset=base)
                    )
                responses.append(
                    produce.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
                )
            self.changed.notify_all()
        return produce.ProduceResponse(responses=responses)

    def _Fetch(self, node_id: int, request: fetch.FetchRequest, code: int) -> Message:
        with self.changed:
            response, found = self._fetch_now(node_id, request, code)
            if not found and self.changed.wait(request.max_wait_ms / 1000):
                response, _ = self._fetch_now(node_id, request, code)
        return response

    def _fetch_now(self, node_id: int, request: fetch.FetchRequest, code: int) -> tuple[fetch.FetchResponse, bool]:
        found = False
        responses = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                partition, error = self._find(node_id, topic.topic, topic.topic_id, asked.partition)
                data = fetch.PartitionData(partition_index=asked.partition, error_code=code or error)
                if partition is not None and not data.error_code:
                    self._fill(data, partition, asked, request)
                found = found or bool(data.error_code) or bool(data.records)
                answers.append(data)
            responses.append(
                fetch.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=answers)
            )
        return fetch.FetchResponse(responses=responses), found

    def _fill(
        self,
        data: fetch.PartitionData,
        partition: FakePartition,
        asked: fetch.FetchPartition,
        request: fetch.FetchRequest,
    ) -> None:
        data.high_watermark = partition.end
        data.last_stable_offset = partition.end if partition.stable is None else partition.stable
        data.log_start_offset = partition.start
        limit = data.last_stable_offset if request.isolation_level else partition.end
        if asked.fetch_offset > partition.end or asked.fetch_offset < partition.start:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return
        chosen: list[bytes] = []
        for batch in partition.batches:
            info = parse_header(batch)
            if info.last_offset < asked.fetch_offset or info.last_offset >= limit:
                continue
            if chosen and sum(map(len, chosen)) + len(batch) > asked.partition_max_bytes:
                break
            chosen.append(batch)
        data.records = b"".join(chosen)
        if request.isolation_level:
            data.aborted_transactions = [
                fetch.AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in partition.aborted
            ]

    def _ListOffsets(self, node_id: int, request: list_offsets.ListOffsetsRequest, code: int) -> Message:
        assert request.replica_id == -1
        responses = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                partition, error = self._find(node_id, topic.name, b"", asked.partition_index)
                answer = list_offsets.ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=code or error
                )
                if partition is not None and not answer.error_code:
                    answer.offset, answer.timestamp = self._offset_at(partition, asked.timestamp)
                    if answer.offset >= 0:
                        answer.old_style_offsets = [answer.offset]
                answers.append(answer)
            responses.append(list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return list_offsets.ListOffsetsResponse(topics=responses)

    def _offset_at(self, partition: FakePartition, timestamp: int) -> tuple[int, int]:
        if timestamp == NOW:
            return partition.end, -1
        if timestamp == LONG_AGO:
            return partition.start, -1
        for batch in partition.batches:
            for record in read_records(batch):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return -1, -1

    def _CreateTopics(self, node_id: int, request: topics.CreateTopicsRequest, code: int) -> Message:
        results = []
        for item in request.topics:
            error = code or (ErrorCode.TOPIC_ALREADY_EXISTS if item.name in self.topics else 0)
            if not error and not request.validate_only:
                self.create(item.name, max(item.num_partitions, 1)).configs.update(
                    {c.name: c.value or "" for c in item.configs}
                )
            results.append(
                topics.CreatableTopicResult(name=item.name, error_code=error, error_message=None, num_partitions=1)
            )
        return topics.CreateTopicsResponse(topics=results)

    def _DeleteTopics(self, node_id: int, request: topics.DeleteTopicsRequest, code: int) -> Message:
        names = [t.name or "" for t in request.topics] or request.topic_names
        results = []
        for name in names:
            error = code or (0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not error:
                del self.topics[name]
            results.append(topics.DeletableTopicResult(name=name, error_code=error))
        return topics.DeleteTopicsResponse(responses=results)

    def _CreatePartitions(self, node_id: int, request: topics.CreatePartitionsRequest, code: int) -> Message:
        results = []
        for item in request.topics:
            existing = self.topics[item.name].partitions
            error = code or (ErrorCode.INVALID_PARTITIONS if item.count <= len(existing) else 0)
            if not error:
                existing += [FakePartition(leader=node_id) for _ in range(item.count - len(existing))]
            message = "must be more than before" if error == ErrorCode.INVALID_PARTITIONS else None
            results.append(topics.CreatePartitionsTopicResult(name=item.name, error_code=error, error_message=message))
        return topics.CreatePartitionsResponse(results=results)

    def _DeleteRecords(self, node_id: int, request: delete_records.DeleteRecordsRequest, code: int) -> Message:
        responses = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                partition, error = self._find(node_id, topic.name, b"", asked.partition_index)
                if partition is not None and not (code or error):
                    partition.start = partition.end if asked.offset < 0 else asked.offset
                answers.append(
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index,
                        low_watermark=partition.start if partition else -1,
                        error_code=code or error,
                    )
                )
            responses.append(delete_records.DeleteRecordsTopicResult(name=topic.name, partitions=answers))
        return delete_records.DeleteRecordsResponse(topics=responses)

    def _DescribeConfigs(self, node_id: int, request: configs.DescribeConfigsRequest, code: int) -> Message:
        results = []
        for resource in request.resources:
            values = {"cleanup.policy": "delete"} | self.topics[resource.resource_name].configs
            results.append(
                configs.DescribeConfigsResult(
                    error_code=code,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        configs.DescribeConfigsResourceResult(
                            name=name, value=value, config_source=5 if name == "cleanup.policy" else 1
                        )
                        for name, value in values.items()
                        if resource.configuration_keys is None or name in resource.configuration_keys
                    ],
                )
            )
        return configs.DescribeConfigsResponse(results=results)

    def _IncrementalAlterConfigs(
        self, node_id: int, request: configs.IncrementalAlterConfigsRequest, code: int
    ) -> Message:
        results = []
        for resource in request.resources:
            settings = self.topics[resource.resource_name].configs
            for change in resource.configs:
                if change.config_operation == 1:
                    settings.pop(change.name, None)
                else:
                    settings[change.name] = change.value or ""
            results.append(
                configs.AlterConfigsResourceResponse(
                    error_code=code, resource_type=resource.resource_type, resource_name=resource.resource_name
                )
            )
        return configs.IncrementalAlterConfigsResponse(responses=results)

    def _InitProducerId(self, node_id: int, request: producers.InitProducerIdRequest, code: int) -> Message:
        assert request.transactional_id is None
        self._producer_ids += 1
        return producers.InitProducerIdResponse(error_code=code, producer_id=self._producer_ids, producer_epoch=0)

    def _DescribeCluster(self, node_id: int, request: cluster.DescribeClusterRequest, code: int) -> Message:
        return cluster.DescribeClusterResponse(
            error_code=code,
            cluster_id="fake",
            controller_id=self.controller,
            brokers=[
                cluster.DescribeClusterBroker(broker_id=node.node_id, host="127.0.0.1", port=node.port)
                for node in self.nodes.values()
            ],
        )

    def _FindCoordinator(self, node_id: int, request: coordinators.FindCoordinatorRequest, code: int) -> Message:
        node = self.nodes[max(self.nodes)]
        return coordinators.FindCoordinatorResponse(
            error_code=code,
            node_id=node.node_id,
            host="127.0.0.1",
            port=node.port,
            coordinators=[
                coordinators.Coordinator(
                    key=key, node_id=node.node_id, host="127.0.0.1", port=node.port, error_code=code
                )
                for key in request.coordinator_keys
            ],
        )


class FakeNode:
    """One listener of the cluster. A stopped node refuses connections until it is started again, on the same port."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.advertised = True
        self.accepted = 0
        self.port = 0
        self._server: _Server | None = None
        self.start()

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections and cut those there are."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.cut_all()
            self._server = None

    def cut_connections(self) -> None:
        """Cut the connections there are, as a broker does with idle ones; new ones are welcome."""
        assert self._server is not None
        self._server.cut_all()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], node: FakeNode) -> None:
        self.node = node
        self.open: set[Any] = set()
        super().__init__(address, _Handler)

    def cut_all(self) -> None:
        for connection in list(self.open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.open.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = cast(_Server, self.server)
        server.open.add(self.connection)
        server.node.accepted += 1
        try:
            while self._answer_one(server.node):
                pass
        finally:
            server.open.discard(self.connection)

    def _answer_one(self, node: FakeNode) -> bool:
        prefix = self.rfile.read(4)
        if len(prefix) < 4:
            return False
        header = decode_request_header(memoryview(self.rfile.read(int.from_bytes(prefix, "big"))))
        key = ApiKey(header.api_key)
        if key is ApiKey.API_VERSIONS:
            return self._answer_versions(node.cluster, header.api_version, header.correlation_id)
        low, high = node.cluster.offered[key]
        assert low <= header.api_version <= high, f"{key.name} v{header.api_version} was not offered"
        request = decode(request_class(key), header.api_version, header.body)
        response = node.cluster.answer(node.node_id, key, header.api_version, request)
        if response is None:
            return False
        if not (isinstance(request, produce.ProduceRequest) and request.acks == 0):
            self.wfile.write(b"".join(encode_response(response, header.api_version, header.correlation_id)))
        return True

    def _answer_versions(self, cluster: FakeCluster, version: int, correlation_id: int) -> bool:
        response = api_versions.ApiVersionsResponse(
            api_keys=[
                api_versions.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in cluster.offered.items()
            ]
        )
        newest = cluster.offered[ApiKey.API_VERSIONS][1]
        if version > newest:
            response.error_code = ErrorCode.UNSUPPORTED_VERSION
            body = encode(response, 0)
            self.wfile.write((len(body) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body)
        else:
            self.wfile.write(b"".join(encode_response(response, version, correlation_id)))
        return True
