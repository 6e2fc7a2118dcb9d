"""Groups of KIP-848, rule by rule (see chronik.groups.consumer_state)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from chronik.groups.consumer_group import ConsumerGroup, Outcome, TopicsView
from chronik.groups.consumer_requests import check_request
from chronik.groups.consumer_state import ConsumerSettings, GroupData, MemberState
from chronik.groups.records import parsed, raw
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from chronik.protocol.wire import Message

SESSION_MS = 45_000
REBALANCE_MS = 10_000


class Topic(NamedTuple):
    topic_id: bytes
    partitions: tuple[object, ...]
    internal: bool = False


def topics(version: int = 1, **counts: int) -> TopicsView:
    made = {name: Topic(name.encode().ljust(16, b"-"), (None,) * count) for name, count in counts.items()}
    return TopicsView({**made, "__internal": Topic(b"i" * 16, (None,), True)}, version)


class Driver:
    """The world around one group: whatever it drafts is written at once, unless the test says otherwise."""

    def __init__(self, view: TopicsView | None = None, **settings: Any) -> None:
        self.now = 1_000_000
        self.topics = view if view is not None else topics(t=4)
        self.group = ConsumerGroup("g", ConsumerSettings(**settings), self.now)
        self.records: list[tuple[Message, Message | None]] = []
        self.owned: dict[str, set[int]] = {}
        self.epochs: dict[str, int] = {}

    def take(self, outcome: Outcome) -> ConsumerGroupHeartbeatResponse:
        if outcome.draft is not None:
            self.records += outcome.draft.records
            self.group.install(outcome.draft, self.now)
        self.group.touch(outcome.member_id, self.now)
        return outcome.response

    def send(self, member: str, epoch: int | None = None, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=self.epochs.get(member, 0) if epoch is None else epoch,
            **fields,
        )
        check_request(request, 1, self.group.settings.assignors)
        if request.member_epoch < 0:
            return self.take(self.group.leave(request, self.topics))
        answer = self.take(
            self.group.heartbeat(request, self.topics, self.now, client_id="client", client_host="/host")
        )
        self.epochs[member] = answer.member_epoch
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            self.owned[member] = {p for part in parts for p in part.partitions}
        return answer

    def join(self, member: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        fields = {"subscribed_topic_names": ["t"], **fields}
        self.epochs.pop(member, None)
        return self.send(member, 0, rebalance_timeout_ms=REBALANCE_MS, topic_partitions=[], **fields)

    def tell(self, member: str, owned: set[int] | None = None) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat that says what the member owns."""
        parts = sorted(self.owned.get(member, set()) if owned is None else owned)
        topic_id = self.topics.by_name["t"].topic_id
        return self.send(member, topic_partitions=[TopicPartitions(topic_id=topic_id, partitions=parts)])

    def code(self, member: str, epoch: int | None = None, **fields: Any) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            self.send(member, epoch, **fields)
        return raised.value.code

    def settle(self, *members: str) -> None:
        for _ in range(4):
            for member in members:
                self.tell(member)


def test_a_lone_member_gets_everything_at_once() -> None:
    driver = Driver()
    answer = driver.join("a")
    assert answer.member_epoch == 1
    assert driver.owned["a"] == {0, 1, 2, 3}
    assert driver.group.state_name == "Stable"


def test_partitions_are_given_only_when_they_were_given_up() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    assert driver.owned["b"] == set()
    assert driver.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    still = driver.send("a")
    assert still.member_epoch == 1, "it must give up first"
    assert len(driver.owned["a"]) == 2
    driver.send("b")
    assert driver.owned["b"] == set()
    driver.tell("a", {0, 1, 2, 3})
    driver.send("b")
    assert driver.owned["b"] == set(), "a says that it still has everything"
    assert driver.tell("a").member_epoch == 2
    driver.send("b")
    assert driver.owned["a"] | driver.owned["b"] == {0, 1, 2, 3}
    assert driver.group.state_name == "Stable"


def test_a_heartbeat_that_changes_nothing_writes_nothing_and_tells_no_assignment() -> None:
    driver = Driver()
    driver.join("a")
    before = len(driver.records)
    assert driver.send("a").assignment is None
    assert len(driver.records) == before


def test_a_member_that_says_everything_is_told_everything() -> None:
    driver = Driver()
    driver.join("a")
    answer = driver.send("a", rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["t"], topic_partitions=[])
    assert answer.assignment is not None and answer.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]


@pytest.mark.parametrize("epoch", [0, 3, 99])
def test_another_epoch_is_fenced(epoch: int) -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.settle("a", "b")
    if epoch:
        assert driver.code("a", epoch) is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_welcome_when_an_answer_was_lost() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.settle("a", "b")
    assert driver.epochs["a"] == 2
    topic_id = driver.topics.by_name["t"].topic_id
    mine = [TopicPartitions(topic_id=topic_id, partitions=sorted(driver.owned["a"]))]
    assert driver.send("a", 1, topic_partitions=mine).member_epoch == 2
    assert driver.code("a", 1) is ErrorCode.FENCED_MEMBER_EPOCH
    everything = [TopicPartitions(topic_id=topic_id, partitions=[0, 1, 2, 3])]
    assert driver.code("a", 1, topic_partitions=everything) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_nobody_knows_is_refused_unless_it_joins() -> None:
    driver = Driver()
    driver.join("a")
    assert driver.code("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.code("x", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_what_a_member_leaves_behind_is_read_by_the_others() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.settle("a", "b")
    assert driver.send("b", -1).member_epoch == -1
    driver.settle("a")
    assert driver.owned["a"] == {0, 1, 2, 3}


def test_a_silent_member_is_removed_when_its_session_times_out() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.settle("a", "b")
    driver.now += SESSION_MS - 1
    driver.send("a")
    driver.now += 1
    draft = driver.group.tick(driver.topics, driver.now)
    assert draft is not None
    driver.group.install(draft, driver.now)
    assert list(driver.group.members) == ["a"]


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    driver = Driver()
    driver.join("a")
    driver.join("b")
    driver.send("a")
    assert driver.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    driver.now += REBALANCE_MS
    assert driver.group.wake_at <= driver.now
    draft = driver.group.tick(driver.topics, driver.now)
    assert draft is not None
    driver.group.install(draft, driver.now)
    assert list(driver.group.members) == ["b"]


def test_a_removal_that_could_not_be_written_is_tried_again() -> None:
    driver = Driver()
    driver.join("a")
    driver.now += SESSION_MS
    assert driver.group.tick(driver.topics, driver.now) is not None
    assert driver.group.wake_at < driver.now + SESSION_MS
    assert "a" in driver.group.members


def test_what_could_not_be_written_has_not_happened() -> None:
    driver = Driver()
    driver.join("a")
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="b",
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    driver.group.heartbeat(request, driver.topics, driver.now, client_id="c", client_host="h")
    assert list(driver.group.members) == ["a"]
    assert driver.group.data.epoch == 1


def test_new_partitions_and_new_topics_are_assigned() -> None:
    driver = Driver()
    driver.join("a", subscribed_topic_names=["t", "later"])
    driver.topics = topics(2, t=6)
    driver.send("a")
    assert driver.owned["a"] == set(range(6))
    driver.topics = topics(3, t=6, later=1)
    assert driver.send("a").assignment is not None
    assert driver.epochs["a"] == 3


def test_an_unrelated_change_of_topics_changes_nothing() -> None:
    driver = Driver()
    driver.join("a")
    before = len(driver.records)
    driver.topics = topics(2, t=4, other=3)
    driver.send("a")
    assert len(driver.records) == before


def test_a_pattern_is_followed_as_topics_come_and_go_and_never_matches_internal_topics() -> None:
    driver = Driver(topics(ta=1, tb=1, x=1))
    driver.join("a", subscribed_topic_names=None, subscribed_topic_regex="t.*|__.*")
    assert driver.group.subscribed() == {"ta", "tb"}
    driver.topics = topics(2, ta=1, tc=1)
    driver.send("a")
    assert driver.group.subscribed() == {"ta", "tc"}
    driver.send("a", subscribed_topic_regex="", subscribed_topic_names=["x"])
    assert driver.group.data.regexes == {}


def test_a_pattern_that_is_no_pattern_is_refused() -> None:
    driver = Driver()
    with pytest.raises(KafkaError) as raised:
        driver.join("a", subscribed_topic_names=None, subscribed_topic_regex="t(")
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_that_would_hang_other_engines_is_matched_in_no_time() -> None:
    driver = Driver(TopicsView({"a" * 200 + "!": Topic(b"z" * 16, (None,))}, 1))
    driver.join("a", subscribed_topic_names=None, subscribed_topic_regex="(a*)*b")
    assert driver.group.subscribed() == frozenset()


def test_a_static_member_that_comes_back_takes_its_place_over() -> None:
    driver = Driver()
    driver.join("a", instance_id="one")
    driver.join("b", instance_id="two")
    driver.settle("a", "b")
    mine, epoch = driver.owned["b"], driver.group.data.epoch
    with pytest.raises(KafkaError) as raised:
        driver.join("c", instance_id="two")
    assert raised.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
    driver.send("b", -2, instance_id="two")
    assert driver.group.members["b"].epoch == -2
    answer = driver.join("c", instance_id="two")
    assert answer.error_code == 0
    assert driver.owned["c"] == mine
    assert driver.group.data.epoch == epoch, "nobody else has to move"
    assert set(driver.group.members) == {"a", "c"}
    assert driver.code("b", 2, instance_id="two") is ErrorCode.FENCED_INSTANCE_ID


def test_a_full_group_takes_no_more_members() -> None:
    driver = Driver(max_size=1)
    driver.join("a")
    with pytest.raises(KafkaError) as raised:
        driver.join("b")
    assert raised.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.join("a")


WRONG: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
    ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
    ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
    ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
    ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
    ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
    ({"topic_partitions": [TopicPartitions(partitions=[1])]}, ErrorCode.INVALID_REQUEST),
    ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
    ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
    ({"server_assignor": "magic"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
]


@pytest.mark.parametrize(("fields", "code"), WRONG)
def test_a_heartbeat_that_makes_no_sense_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    right: dict[str, Any] = {
        "group_id": "g",
        "member_id": "a",
        "rebalance_timeout_ms": 1000,
        "topic_partitions": [],
        "subscribed_topic_names": ["t"],
    }
    check_request(ConsumerGroupHeartbeatRequest(**right), 1, ("uniform",))
    with pytest.raises(KafkaError) as raised:
        check_request(ConsumerGroupHeartbeatRequest(**{**right, **fields}), 1, ("uniform",))
    assert raised.value.code is code


def test_a_first_version_client_may_join_without_a_member_id() -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", rebalance_timeout_ms=1, topic_partitions=[], subscribed_topic_names=["t"]
    )
    check_request(request, 0, ("uniform",))


def test_the_sum_of_the_records_is_the_group() -> None:
    driver = Driver()
    driver.join("a", instance_id="one", rack_id="r")
    driver.join("b", subscribed_topic_regex="t.*")
    driver.send("a")
    driver.settle("a", "b")
    driver.send("b", -1)
    driver.join("c", server_assignor="range")
    loaded = GroupData()
    for key, value in driver.records:
        record = parsed(*raw(key, value))
        assert record is not None
        loaded.replay(*record)
    for field in GroupData.__slots__:
        assert getattr(loaded, field) == getattr(driver.group.data, field), field


def test_offsets_are_committed_in_the_members_epoch_only() -> None:
    driver = Driver()
    assert driver.group.commit_problem("", -1) is None
    driver.join("a")
    assert driver.group.commit_problem("a", 1) is None
    assert driver.group.commit_problem("a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.group.commit_problem("a", 0, transactional=True) is ErrorCode.ILLEGAL_GENERATION
    assert driver.group.commit_problem("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.commit_problem("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
