"""Bytes written out by hand from the protocol, for what no oracle has or what must never change."""

import pytest

from chronik.protocol import codec
from chronik.protocol.messages import internal_consumer_groups as consumer_groups
from chronik.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from chronik.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from chronik.protocol.messages.internal_consumer_protocol import ConsumerProtocolSubscription, TopicPartitions
from chronik.protocol.messages.internal_groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from chronik.protocol.messages.internal_offsets import OffsetCommitKey, OffsetCommitValue
from chronik.protocol.messages.internal_transactions import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from chronik.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from chronik.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from chronik.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from chronik.protocol.wire import Message

UUID = bytes(range(16))
UUID_HEX = UUID.hex()


def _produce(version: int) -> ProduceRequest:
    request = ProduceRequest(acks=-1, timeout_ms=1000)
    topic = TopicProduceData(partition_data=[PartitionProduceData(2, b"\xca\xfe")])
    if version < 13:
        topic.name = "t"
    else:
        topic.topic_id = UUID
    request.topic_data = [topic]
    return request


GOLDEN: list[tuple[Message, int, str]] = [
    (_produce(0), 0, "ffff 000003e8 00000001 0001 74 00000001 00000002 00000002 cafe"),
    (_produce(3), 3, "ffff ffff 000003e8 00000001 0001 74 00000001 00000002 00000002 cafe"),
    (_produce(9), 9, "00 ffff 000003e8 02 02 74 02 00000002 03 cafe 00 00 00"),
    (_produce(13), 13, f"00 ffff 000003e8 02 {UUID_HEX} 02 00000002 03 cafe 00 00 00"),
    (
        ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(1, 3, 5)])]
        ),
        0,
        "00000001 0001 74 00000001 00000001 0003 0000000000000005",
    ),
    (
        ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(1, 3, 5)])]
        ),
        2,
        "00000001 0001 74 00000001 00000001 0003 0000000000000005 ffffffffffffffff 00000000",
    ),
    (
        FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            topics=[FetchTopic(topic="t", partitions=[FetchPartition(0, fetch_offset=9, partition_max_bytes=64)])],
        ),
        0,
        "ffffffff 00000064 00000001 00000001 0001 74 00000001 00000000 0000000000000009 00000040",
    ),
    (
        FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(0, 0, 9, records=b"!")])]),
        0,
        "00000001 0001 74 00000001 00000000 0000 0000000000000009 00000001 21",
    ),
    (
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t",
                    partitions=[
                        PartitionData(
                            0,
                            74,
                            9,
                            diverging_epoch=EpochEndOffset(3, 8),
                            current_leader=LeaderIdAndEpoch(2, 4),
                            aborted_transactions=None,
                            records=None,
                        )
                    ],
                )
            ]
        ),
        12,
        "00000000 0000 00000000 02 02 74 02"
        " 00000000 004a 0000000000000009 ffffffffffffffff ffffffffffffffff 00 ffffffff 00"
        " 02  00 0d 00000003 0000000000000008 00  01 09 00000002 00000004 00"
        " 00 00",
    ),
    (
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=1, timestamp=-1, max_num_offsets=5)]
                )
            ]
        ),
        0,
        "00000000 00000001 0001 74 00000001 00000001 ffffffffffffffff 00000005",
    ),
    (
        ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="t", partitions=[ListOffsetsPartitionResponse(partition_index=1, old_style_offsets=[7, 0])]
                )
            ]
        ),
        0,
        "00000001 0001 74 00000001 00000001 0000 00000002 0000000000000007 0000000000000000",
    ),
    (MetadataRequest(topics=[]), 0, "00000000"),
    (MetadataRequest(topics=None), 1, "ffffffff"),
    (MetadataRequest(topics=None), 9, "00 01 00 00 00"),
    (
        MetadataRequest(topics=[MetadataRequestTopic(topic_id=UUID, name=None)], allow_auto_topic_creation=False),
        12,
        f"02 {UUID_HEX} 00 00 00 00 00",
    ),
    (
        CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=3, replication_factor=1)], timeout_ms=9),
        0,
        "00000001 0001 74 00000003 0001 00000000 00000000 00000009",
    ),
    (
        ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, 4)]),
        0,
        "0023 00000001 0012 0000 0004",
    ),
    (ApiVersionsResponse(api_keys=[ApiVersion(18, 0, 4)]), 3, "0000 02 0012 0000 0004 00 00000000 00"),
    (
        ConsumerProtocolSubscription(
            topics=["t"], owned_partitions=[TopicPartitions(topic="t", partitions=[4])], generation_id=6, rack_id="r"
        ),
        3,
        "00000001 0001 74 ffffffff 00000001 0001 74 00000001 00000004 00000006 0001 72",
    ),
    (OffsetCommitKey(group="g", topic="t", partition=3), 1, "0001 67 0001 74 00000003"),
    (
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7, expire_timestamp=8),
        1,
        "0000000000000005 0001 6d 0000000000000007 0000000000000008",
    ),
    (
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=7),
        3,
        "0000000000000005 00000002 0001 6d 0000000000000007",
    ),
    (
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=7, topic_id=UUID),
        4,
        f"0000000000000005 00000002 02 6d 0000000000000007 01 00 10 {UUID_HEX}",
    ),
    (GroupMetadataKey(group="g"), 2, "0001 67"),
    (
        GroupMetadataValue(
            protocol_type="consumer",
            generation=1,
            protocol="range",
            leader="m",
            current_state_timestamp=2,
            members=[
                MemberMetadata(
                    member_id="m",
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout=3,
                    session_timeout=4,
                    subscription=b"\x01",
                    assignment=b"",
                )
            ],
        ),
        3,
        "0008 636f6e73756d6572 00000001 0005 72616e6765 0001 6d 0000000000000002 00000001"
        " 0001 6d ffff 0001 63 0002 2f68 00000003 00000004 00000001 01 00000000",
    ),
    (TransactionLogKey(transactional_id="x"), 0, "0001 78"),
    (
        TransactionLogValue(
            producer_id=9,
            producer_epoch=1,
            transaction_timeout_ms=60000,
            transaction_status=1,
            transaction_partitions=[TransactionPartitions(topic="t", partition_ids=[0, 1])],
            transaction_last_update_timestamp_ms=10,
            transaction_start_timestamp_ms=11,
        ),
        0,
        "0000000000000009 0001 0000ea60 01 00000001 0001 74 00000002 00000000 00000001"
        " 000000000000000a 000000000000000b",
    ),
    (
        TransactionLogValue(producer_id=9, producer_epoch=1, transaction_partitions=None, client_transaction_version=2),
        1,
        "0000000000000009 0001 00000000 00 00 0000000000000000 0000000000000000 01 02 02 0002",
    ),
    (
        consumer_groups.ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="h",
            subscribed_topic_names=["t"],
            rebalance_timeout_ms=1,
            classic_member_metadata=consumer_groups.ClassicMemberMetadata(
                session_timeout_ms=2, supported_protocols=[consumer_groups.ClassicProtocol("r", b"\x09")]
            ),
        ),
        0,
        "00 00 02 63 02 68 02 02 74 00 00000001 00  01 00 0c  01 00000002 02 02 72 02 09 00 00",
    ),
    (
        consumer_groups.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=1,
            assigned_partitions=[consumer_groups.TopicPartitions(UUID, [0])],
        ),
        0,
        f"00000003 00000002 01 02 {UUID_HEX} 02 00000000 00 01 00",
    ),
]


@pytest.mark.parametrize(
    ("message", "version", "expected"),
    [pytest.param(*g, id=f"{type(g[0]).__name__}-v{g[1]}-{i}") for i, g in enumerate(GOLDEN)],
)
def test_messages_have_exactly_these_bytes(message: Message, version: int, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert codec.encode(message, version).hex(" ") == data.hex(" ")
    decoded = codec.decode(type(message), version, data)
    assert codec.encode(decoded, version) == data
