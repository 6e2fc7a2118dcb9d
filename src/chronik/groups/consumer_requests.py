"""What a ConsumerGroupHeartbeat says: whether it is well-formed, in the right epoch, and what it changes. Pure."""

from __future__ import annotations

import msgspec

from chronik.groups.consumer_state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Assignment,
    Member,
    contains,
)
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """What is wrong with a heartbeat whatever the group; raises KafkaError."""
    epoch, problem = request.member_epoch, ""
    if not request.group_id:
        problem = "GroupId can't be empty."
    elif request.instance_id == "" or request.rack_id == "":
        problem = "InstanceId and RackId can't be empty."
    elif epoch < LEAVE_STATIC_EPOCH:
        problem = "MemberEpoch is less than -2."
    elif not request.member_id and (epoch != JOIN_EPOCH or version >= 1):
        problem = "MemberId can't be empty."
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms < 0:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "TopicPartitions must be empty when (re-)joining."
        elif not request.subscribed_topic_names and not request.subscribed_topic_regex:
            problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-empty when (re-)joining."
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors and epoch >= JOIN_EPOCH:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def is_leaving(request: ConsumerGroupHeartbeatRequest) -> bool:
    return request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)


def check_epoch(member: Member, epoch: int, owned: Assignment | None) -> None:
    """Rule 4."""
    if epoch == member.epoch:
        return
    lost_answer = epoch < member.epoch and epoch == member.previous_epoch
    if lost_answer and owned is not None and contains(member.assigned, owned):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if epoch > member.epoch else 'smaller'} member epoch ({epoch}) "
        f"than the one known by the group coordinator ({member.epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )


def updated(member: Member, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str) -> Member:
    """The member with what the request says; null means unchanged."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return msgspec.structs.replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topic_names=member.topic_names if names is None else tuple(sorted(set(names))),
        topic_regex=member.topic_regex if regex is None else regex or None,
        client_id=client_id,
        client_host=client_host,
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the client says everything, as it does when it is not sure what it was told."""
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
