"""Administration: topics, settings, the cluster."""

from __future__ import annotations

import pytest

from chronik.client import Cluster, TopicPartition
from chronik.client.admin import cluster as cluster_admin
from chronik.client.admin import configs, topics
from chronik.client.admin.configs import ConfigSource, ResourceType
from chronik.client.admin.topics import NewTopic
from chronik.protocol.api import ApiKey
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse
from chronik.protocol.records import Record, build_batch
from harness.fake_cluster import FakeCluster


def test_a_topic_is_created_with_its_settings_at_the_controller(fake: FakeCluster, cluster: Cluster) -> None:
    fake.controller = 2
    topics.create_topic(cluster, "t", partitions=3, configs={"retention.ms": "5"})
    assert len(fake.topics["t"].partitions) == 3
    assert fake.topics["t"].configs == {"retention.ms": "5"}
    assert [node for node, key, _, _ in fake.journal if key is ApiKey.CREATE_TOPICS] == [2]


def test_when_the_controller_is_down_another_broker_is_asked(fake: FakeCluster, cluster: Cluster) -> None:
    fake.controller = 2
    fake.nodes[2].stop()
    topics.create_topic(cluster, "t")
    assert "t" in fake.topics


def test_validation_creates_nothing(fake: FakeCluster, cluster: Cluster) -> None:
    topics.create_topic(cluster, "t", validate_only=True)
    assert fake.topics == {}


def test_creating_many_tells_what_came_of_each(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("b")
    results = topics.create_topics(cluster, [NewTopic(name=name) for name in "abc"])
    assert [(r.name, r.error.code if r.error else None) for r in results] == [
        ("a", None),
        ("b", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("c", None),
    ]
    with pytest.raises(KafkaError) as caught:
        topics.create_topic(cluster, "a")
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_explicit_replicas_replace_the_numbers(fake: FakeCluster, cluster: Cluster) -> None:
    topics.create_topics(cluster, [NewTopic(name="t", partitions=9, assignments={0: [1, 2], 1: [2, 3]})])
    (request,) = fake.asked(ApiKey.CREATE_TOPICS)
    (topic,) = request.topics  # type: ignore[attr-defined]
    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
    assert [(a.partition_index, a.broker_ids) for a in topic.assignments] == [(0, [1, 2]), (1, [2, 3])]


def test_only_the_topics_that_failed_for_a_time_are_tried_again(fake: FakeCluster, cluster: Cluster) -> None:
    rounds: list[list[str]] = []

    def script(request: object) -> CreateTopicsResponse:
        names = [topic.name for topic in request.topics]  # type: ignore[attr-defined]
        rounds.append(names)
        codes = {"a": 0, "b": ErrorCode.NOT_CONTROLLER if len(rounds) == 1 else 0, "c": ErrorCode.INVALID_CONFIG}
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=name, error_code=codes[name], error_message="why") for name in names]
        )

    fake.scripts[ApiKey.CREATE_TOPICS] = script
    results = topics.create_topics(cluster, [NewTopic(name=name) for name in "abc"])
    assert rounds == [["a", "b", "c"], ["b"]]
    assert [r.error.code if r.error else None for r in results] == [None, None, ErrorCode.INVALID_CONFIG]
    assert "why" in str(results[2].error)


def test_a_create_whose_answer_was_lost_says_that_it_may_have_worked(fake: FakeCluster, cluster: Cluster) -> None:
    fake.hang_up(ApiKey.CREATE_TOPICS, after_work=True)
    with pytest.raises(KafkaError, match="an earlier try") as caught:
        topics.create_topic(cluster, "t")
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_failure_for_a_time_that_does_not_end_is_reported_per_topic(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(ApiKey.CREATE_TOPICS, ErrorCode.NOT_CONTROLLER, times=100_000)
    (result,) = topics.create_topics(cluster, [NewTopic(name="t")])
    assert result.error is not None and result.error.code is ErrorCode.NOT_CONTROLLER


def test_topics_are_listed_by_name_internal_ones_only_if_asked(fake: FakeCluster, cluster: Cluster) -> None:
    for name in ("b", "a", "__hidden"):
        fake.create(name)
    assert [t.name for t in topics.list_topics(cluster)] == ["a", "b"]
    assert [t.name for t in topics.list_topics(cluster, include_internal=True)] == ["__hidden", "a", "b"]
    del fake.topics["b"]
    assert [t.name for t in topics.list_topics(cluster)] == ["a"]


def test_a_description_is_fresh(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    (before,) = topics.describe_topics(cluster, ["t"])
    fake.move_leader("t", 1, 3)
    (after,) = topics.describe_topics(cluster, ["t"])
    assert (before.partitions[1].leader, after.partitions[1].leader) == (2, 3)
    assert after.partitions[1].leader_epoch == before.partitions[1].leader_epoch + 1
    assert after.topic_id == fake.topics["t"].topic_id
    with pytest.raises(KafkaError, match="does not exist"):
        topics.describe_topics(cluster, ["absent"])


@pytest.mark.parametrize("newest", [3, 6])
def test_topics_are_deleted_and_an_absent_one_is_reported_at_once(
    fake: FakeCluster, cluster: Cluster, newest: int
) -> None:
    fake.offer(ApiKey.DELETE_TOPICS, 0, newest)
    fake.create("a")
    results = topics.delete_topics(cluster, ["a", "absent"])
    assert [(r.name, r.error.code if r.error else None) for r in results] == [
        ("a", None),
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert fake.topics == {}
    assert len(fake.asked(ApiKey.DELETE_TOPICS)) == 1
    with pytest.raises(KafkaError, match="check the name"):
        topics.delete_topic(cluster, "absent")


def test_partitions_are_added_and_seen_at_once(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    assert len(cluster.topic("t").partitions) == 1
    topics.create_partitions(cluster, "t", 4)
    assert len(cluster.topic("t").partitions) == 4
    with pytest.raises(KafkaError, match="more than before"):
        topics.create_partitions(cluster, "t", 2)


def test_records_are_deleted_at_the_leaders(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=3)
    for partition in fake.topics["t"].partitions:
        partition.append(build_batch([Record(i, 0, None, b"v") for i in range(5)]))
    everything = topics.UP_TO_HIGH_WATERMARK
    places = {TopicPartition("t", 0): 3, TopicPartition("t", 1): everything, TopicPartition("t", 2): 0}
    assert topics.delete_records(cluster, places) == {
        TopicPartition("t", 0): 3,
        TopicPartition("t", 1): 5,
        TopicPartition("t", 2): 0,
    }


def test_settings_are_described_with_their_source(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t").configs["retention.ms"] = "5"
    entries = configs.describe_configs(cluster, ResourceType.TOPIC, "t")
    assert [(e.name, e.value, e.source, e.is_default) for e in entries] == [
        ("cleanup.policy", "delete", ConfigSource.DEFAULT, True),
        ("retention.ms", "5", ConfigSource.TOPIC, False),
    ]
    (one,) = configs.describe_configs(cluster, ResourceType.TOPIC, "t", names=["retention.ms"])
    assert one.value == "5"


def test_settings_are_changed_one_by_one_and_taken_back(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t").configs.update({"a": "1", "b": "2"})
    configs.alter_configs(cluster, ResourceType.TOPIC, "t", {"a": None, "c": "3"})
    assert fake.topics["t"].configs == {"b": "2", "c": "3"}
    fake.fail(ApiKey.INCREMENTAL_ALTER_CONFIGS, ErrorCode.INVALID_CONFIG)
    with pytest.raises(KafkaError, match="changing the settings of topic t"):
        configs.alter_configs(cluster, ResourceType.TOPIC, "t", {"c": "x"})


def test_the_cluster_describes_itself(fake: FakeCluster, cluster: Cluster) -> None:
    fake.fail(ApiKey.DESCRIBE_CLUSTER, ErrorCode.REQUEST_TIMED_OUT)
    described = cluster_admin.describe_cluster(cluster)
    assert (described.cluster_id, described.controller_id) == ("fake", 1)
    assert [broker.node_id for broker in described.brokers] == [1, 2, 3]
    assert described.fenced == []
