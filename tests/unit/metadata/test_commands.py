"""The bytes of commands and snapshots: old ones are read for ever, newer ones are never guessed at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from chronik.metadata import commands as c
from chronik.metadata import snapshot
from chronik.metadata.image import MetadataImage, at_once
from chronik.metadata.model import BrokerStatus, NodeState, ResourceType
from chronik.protocol.errors import ErrorCode

FORMATS = Path(__file__).parent / "formats"
TOPIC = b"t" * 16

LEVEL_1: list[c.Command] = [
    c.RegisterBroker(
        1,
        b"i" * 16,
        "host",
        9092,
        "peer",
        9192,
        b"d" * 16,
        "rack",
        "machine",
        {"chronik.version": (1, 1)},
        7,
        "h:6092",
        "0.1",
    ),
    c.RegisterBroker(2, b"j" * 16, "host", 9092),
    c.UpdateBrokerStatus(1, BrokerStatus.ONLINE, 1, True, "why"),
    c.UpdateBrokerStatus(2, BrokerStatus.ONLINE),
    c.RemoveBroker(9, 3),
    c.AddNode(4, b"d" * 16, "peer", 9192),
    c.ConfirmNode(4, b"d" * 16),
    c.RemoveNode(5),
    c.CreateTopic("t", TOPIC, ((1, 2), (2, 1)), {"retention.ms": "1000"}),
    c.CreateTopic("gone", b"g" * 16, ((1,),)),
    c.DeleteTopic(b"g" * 16),
    c.AddPartitions(TOPIC, 2, ((1,),)),
    c.AssignPartition([c.Reassignment(TOPIC, 0, (2, 1), 0), c.Reassignment(TOPIC, 1, None)]),
    c.FinishAssignment([c.FinishedAssignment(TOPIC, 0, 1)]),
    c.SetPartitionLeader([c.LeaderChange(TOPIC, 1, 1, 0, (1,), False), c.LeaderChange(TOPIC, 2, -1, 0)]),
    c.UpdateIsr(1, [c.IsrChange(TOPIC, 1, 1, 1, (1, 2), (1, 2))], -1),
    c.SetConfig(ResourceType.BROKER, "", [c.ConfigChange(c.ConfigOperation.SET, "num.partitions", "3")], True),
    c.SetConfig(
        ResourceType.TOPIC, "t", [c.ConfigChange(c.ConfigOperation.APPEND, "cleanup.policy", "compact", "delete")]
    ),
    c.AllocateProducerIds(1, 1000),
    c.SetClusterId("cluster"),
    c.SetFeatureLevel("group.version", 1, True),
    c.Batch([c.AllocateProducerIds(2, 10), c.SetClusterId("other")]),
]
"""One of every command of level 1, with and without its optional fields. A history: applied in this order."""


def history() -> MetadataImage:
    image = MetadataImage()
    for index, command in enumerate(LEVEL_1, start=1):
        image.apply(command, index)
    return image


def test_the_list_has_every_command() -> None:
    assert {type(command) for command in LEVEL_1} == set(get_args(c.Command))


def test_entries_of_level_1_are_read_as_they_were_written() -> None:
    written = json.loads((FORMATS / "commands-1.json").read_text())
    assert [c.decode(bytes.fromhex(entry)) for entry in written] == LEVEL_1


def test_entries_of_level_1_are_still_written_the_same_for_older_nodes_to_read() -> None:
    written = json.loads((FORMATS / "commands-1.json").read_text())
    assert [c.encode(command).hex() for command in LEVEL_1] == written


def test_a_snapshot_of_level_1_is_read_as_it_was_written() -> None:
    image = MetadataImage()
    at_once(snapshot.install(image, at_once(snapshot.parse((FORMATS / "snapshot-1.bin").read_bytes()))))
    assert vars(image) == vars(history())
    assert image.nodes[4].state == NodeState.MEMBER and image.was_deleted(b"g" * 16)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\x81\xa1c\xa1x",
        b"\x01" + msgspec.msgpack.encode({"c": "from_the_future"}),
        b"\x01" + msgspec.msgpack.encode({"c": "delete_topic", "topic_id": b"x", "and": "more"}),
        b"\x01" + msgspec.msgpack.encode({"c": "update_broker_status", "node_id": 1, "status": 77}),
        b"\x01"
        + msgspec.msgpack.encode({"c": "set_partition_leader", "changes": [[b"t", 0, 1, 0, None, False, "new"]]}),
        b"\x01\xc1",
    ],
    ids=["empty", "format", "command", "field", "status", "item field", "garbage"],
)
def test_what_a_newer_version_wrote_is_a_safe_stop_not_a_guess(data: bytes) -> None:
    with pytest.raises(c.UnknownCommand, match="upgrade this node"):
        c.decode(data)


def test_an_optional_field_at_its_default_is_not_written() -> None:
    assert b"maintenance" not in c.encode(c.UpdateBrokerStatus(1, BrokerStatus.ONLINE))


@pytest.mark.parametrize("cut", [3, 20, 60, -1])
def test_a_snapshot_that_is_cut_short_is_refused(cut: int) -> None:
    data = snapshot.capture(history())()
    with pytest.raises(snapshot.UnreadableSnapshot):
        at_once(snapshot.parse(data[:cut]))


def test_a_snapshot_lacking_a_whole_frame_is_refused() -> None:
    image = MetadataImage()
    image.apply(c.RegisterBroker(1, b"i" * 16, "h", 1), 1)
    for number in range(snapshot.TOPICS_PER_FRAME + 1):
        image.apply(c.CreateTopic(f"t{number}", (number + 1).to_bytes(16, "big"), ((1,),)), number + 2)
    whole = snapshot.capture(image)()
    assert len(at_once(snapshot.parse(whole)).topics) == snapshot.TOPICS_PER_FRAME + 1
    one_topic = len(msgspec.msgpack.encode([image.topics[f"t{snapshot.TOPICS_PER_FRAME}"]])) + 4
    with pytest.raises(snapshot.UnreadableSnapshot, match="incomplete"):
        at_once(snapshot.parse(whole[:-one_topic]))


def test_what_is_too_large_for_one_entry_is_named() -> None:
    many = [c.LeaderChange(TOPIC, 0, 1, 0)] * (c.MAX_CHANGES_PER_COMMAND + 1)
    assert "changes" in (c.oversize(c.SetPartitionLeader(many)) or "")
    assert "changes" in (c.oversize(c.Batch([c.SetPartitionLeader(many)])) or "")
    assert "commands" in (c.oversize(c.Batch([c.RemoveNode(1)] * (c.MAX_COMMANDS_PER_BATCH + 1))) or "")
    partitions = ((1,),) * (c.MAX_PARTITIONS_PER_COMMAND + 1)
    assert "partitions" in (c.oversize(c.CreateTopic("t", TOPIC, partitions)) or "")
    assert c.oversize(c.Batch([c.RemoveNode(1)])) is None


def test_a_batch_applies_each_command_by_itself_and_reports_each() -> None:
    image = MetadataImage()
    result = image.apply(c.Batch([c.SetClusterId("a"), c.SetClusterId("b"), c.AllocateProducerIds(1, 5)]), 1)
    assert isinstance(result.value, list)
    assert [line.error for line in result.value] == [
        ErrorCode.NONE,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.NONE,
    ]
    assert result.value[2].value == (0, 5)
