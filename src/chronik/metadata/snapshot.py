"""The bytes of an image: captured on the loop in microseconds, encoded in small frames on a thread, restored exactly,
in slices that leave the loop to others in between.

Layout: magic, then frames of a four-byte length and msgpack. The first frame is a Header, which says how many topic
frames follow. Each of those holds at most TOPICS_PER_FRAME topics, so that a thread that encodes them lets the event
loop in between. Checksums are the business of whoever stores the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator

import msgspec

from chronik.metadata.delta import Delta
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import BrokerInfo, NodeInfo, ResourceType, TopicInfo
from chronik.metadata.partitions import TOPICS_PER_SLICE
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


def parse(data: bytes | memoryview) -> Generator[None, None, Parsed]:
    """Reads a snapshot, a frame at a time. Raises UnreadableSnapshot."""
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
        topics: list[TopicInfo] = []
        for frame in frames[1:]:
            topics += _topics_decoder.decode(frame)
            yield
    except msgspec.DecodeError as error:
        raise UnreadableSnapshot(f"the metadata snapshot cannot be read by this version: {error}") from error
    if header is None or len(frames) != 1 + header.frame_count or len(topics) != header.topic_count:
        raise UnreadableSnapshot("the metadata snapshot is incomplete")
    return Parsed(header, topics)


def install(image: MetadataImage, parsed: Parsed) -> Generator[None, None, Delta]:
    """Makes the image what the snapshot says, in place and at once at the end, and tells what that changed."""
    fresh = yield from _build(parsed)
    delta = Delta()
    delta.restored = True
    delta.features_changed = True
    yield from _compare_topics(image.topics_by_id, fresh.topics_by_id, delta)
    for either in (image, fresh):
        delta.brokers_changed.update(either.brokers)
        delta.nodes_changed.update(either.nodes)
        delta.configs_changed.update(either.configs)
    image.become(fresh)
    return delta


def _build(parsed: Parsed) -> Generator[None, None, MetadataImage]:
    image = MetadataImage()
    header = parsed.header
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
    for count, topic in enumerate(parsed.topics):
        if count % TOPICS_PER_SLICE == TOPICS_PER_SLICE - 1:
            yield
        image.topics[topic.name] = topic
        image.topics_by_id[topic.topic_id] = topic
        image.partition_count += len(topic.partitions)
        metric = metric_name(topic.name)
        if metric is not None:
            image.names_by_metric[metric] = topic.name
    return image


def _compare_topics(
    before: dict[bytes, TopicInfo], after: dict[bytes, TopicInfo], delta: Delta
) -> Generator[None, None, None]:
    for count, (topic_id, old) in enumerate(before.items()):
        if count % TOPICS_PER_SLICE == TOPICS_PER_SLICE - 1:
            yield
        new = after.get(topic_id)
        if new is None:
            delta.topics_deleted[topic_id] = old
            continue
        if new.configs != old.configs:
            delta.configs_changed.add((ResourceType.TOPIC, new.name))
        for partition, state in enumerate(new.partitions):
            if partition >= len(old.partitions) or state != old.partitions[partition]:
                delta.partition_changed(topic_id, partition)
    for topic_id, topic in after.items():
        if topic_id not in before:
            delta.topic_created(topic)
