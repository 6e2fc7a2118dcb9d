"""The bytes of an image: captured on the loop in microseconds, encoded in small frames on a thread, restored exactly.

Layout: magic, then frames of a four-byte length and msgpack. The first frame is a Header, which says how many topic
frames follow. Each of those holds at most TOPICS_PER_FRAME topics, so that a thread that encodes them lets the event
loop in between. Checksums are the business of whoever stores the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from chronik.metadata.delta import Delta
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerInfo, NodeInfo, ResourceType, TopicInfo
from chronik.metadata.topics import metric_name

MAGIC = b"CHRONIK-IMAGE-1\n"
TOPICS_PER_FRAME = 200
_LENGTH = struct.Struct(">I")


class UnreadableSnapshot(Exception):
    """A snapshot that is damaged, or written by a newer version."""


class Header(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All but the topics. A new field has a default that means what its absence meant."""

    version: int
    applied_index: int
    cluster_id: str | None
    producer_id_next: int
    features: dict[str, int]
    brokers: list[BrokerInfo]
    nodes: list[NodeInfo]
    configs: list[tuple[ResourceType, str, dict[str, str]]]
    deleted_topics: list[tuple[bytes, str]]
    brokers_version: int
    configs_version: int
    broker_configs_version: int
    topic_count: int
    frame_count: int


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)
_topics_decoder = msgspec.msgpack.Decoder(list[TopicInfo])


def capture(image: MetadataImage) -> Callable[[], bytes]:
    """Takes hold of the image as it is now; the callable returned encodes it and may run on any thread."""
    topics = list(image.topics.values())
    header = Header(
        version=image.version,
        applied_index=image.applied_index,
        cluster_id=image.cluster_id,
        producer_id_next=image.producer_id_next,
        features=dict(image.features),
        brokers=list(image.brokers.values()),
        nodes=list(image.nodes.values()),
        configs=[(kind, name, values) for (kind, name), values in image.configs.items()],
        deleted_topics=list(image.deleted_topics.items()),
        brokers_version=image.brokers_version,
        configs_version=image.configs_version,
        broker_configs_version=image.broker_configs_version,
        topic_count=len(topics),
        frame_count=-(-len(topics) // TOPICS_PER_FRAME),
    )
    return lambda: _encode(header, topics)


def _encode(header: Header, topics: list[TopicInfo]) -> bytes:
    pieces: list[bytes] = [MAGIC]

    def add(frame: bytes) -> None:
        pieces.append(_LENGTH.pack(len(frame)))
        pieces.append(frame)

    add(_encoder.encode(header))
    for start in range(0, len(topics), TOPICS_PER_FRAME):
        add(_encoder.encode(topics[start : start + TOPICS_PER_FRAME]))
    return b"".join(pieces)


class Parsed(msgspec.Struct, frozen=True):
    """A snapshot read, not yet installed."""

    header: Header
    topics: list[TopicInfo]


def parse(data: bytes | memoryview) -> Parsed:
    """Reads a snapshot; may run on any thread. Raises UnreadableSnapshot."""
    view = memoryview(data)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise UnreadableSnapshot("the metadata snapshot is of a format this version does not know; upgrade this node")
    frames: list[memoryview] = []
    position = len(MAGIC)
    while position < len(view):
        if position + _LENGTH.size > len(view):
            raise UnreadableSnapshot("the metadata snapshot ends in the middle of a frame")
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if position + length > len(view):
            raise UnreadableSnapshot("the metadata snapshot ends in the middle of a frame")
        frames.append(view[position : position + length])
        position += length
    try:
        header = _header_decoder.decode(frames[0]) if frames else None
        topics = [topic for frame in frames[1:] for topic in _topics_decoder.decode(frame)]
    except msgspec.DecodeError as error:
        raise UnreadableSnapshot(f"the metadata snapshot cannot be read by this version: {error}") from error
    if header is None or len(frames) != 1 + header.frame_count or len(topics) != header.topic_count:
        raise UnreadableSnapshot("the metadata snapshot is incomplete")
    return Parsed(header, topics)


def install(image: MetadataImage, parsed: Parsed) -> Delta:
    """Makes the image what the snapshot says, in place, and tells what that changed."""
    delta = Delta()
    delta.restored = True
    delta.features_changed = True
    before = dict(image.topics_by_id)
    delta.brokers_changed.update(image.brokers)
    delta.nodes_changed.update(image.nodes)
    delta.configs_changed.update(image.configs)
    header = parsed.header
    image.clear()
    image.version = header.version
    image.applied_index = header.applied_index
    image.cluster_id = header.cluster_id
    image.producer_id_next = header.producer_id_next
    image.features = dict(header.features)
    image.brokers = {broker.node_id: broker for broker in header.brokers}
    image.nodes = {node.node_id: node for node in header.nodes}
    image.configs = {(kind, name): values for kind, name, values in header.configs}
    image.deleted_topics = dict(header.deleted_topics)
    image.brokers_version = header.brokers_version
    image.configs_version = header.configs_version
    image.broker_configs_version = header.broker_configs_version
    for topic in parsed.topics:
        image.topics[topic.name] = topic
        image.topics_by_id[topic.topic_id] = topic
        image.partition_count += len(topic.partitions)
        metric = metric_name(topic.name)
        if metric is not None:
            image.names_by_metric[metric] = topic.name
    _compare_topics(before, image, delta)
    delta.brokers_changed.update(image.brokers)
    delta.nodes_changed.update(image.nodes)
    delta.configs_changed.update(image.configs)
    return delta


def _compare_topics(before: dict[bytes, TopicInfo], image: MetadataImage, delta: Delta) -> None:
    for topic_id, old in before.items():
        new = image.topics_by_id.get(topic_id)
        if new is None:
            delta.topics_deleted[topic_id] = old
            continue
        if new.configs != old.configs:
            delta.configs_changed.add((ResourceType.TOPIC, new.name))
        for partition, state in enumerate(new.partitions):
            if partition >= len(old.partitions) or state != old.partitions[partition]:
                delta.partition_changed(topic_id, partition)
    for topic_id, topic in image.topics_by_id.items():
        if topic_id not in before:
            delta.topic_created(topic)
