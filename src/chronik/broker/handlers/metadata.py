"""Metadata, v0–v13: brokers, controller, and the topics with their partitions, leaders and replicas.

An absent list of topics means all of them (in v0 an empty list does). From v12 on topics may be asked for by id. A
topic that does not exist is created when the request allows it (always before v4) and the broker's
auto.create.topics.enable is on; the answer then comes when the topic is readable at this node, so the client need not
ask again.

Everything but a creation is answered at once from this node's image, whatever state the cluster is in. The
description of a topic is kept until the topic or a broker changes, because a cluster has thousands of topics and
clients ask often.

Deliberate gaps: offline log folders are not reported, a node has one folder.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from chronik.broker.context import EncodedResponse, RequestContext
from chronik.broker.handlers.cluster_view import (
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    controller_id,
    known_brokers,
)
from chronik.broker.topic_creation import create_missing_topic
from chronik.metadata.model import TopicInfo
from chronik.metadata.topics import name_problem
from chronik.protocol.codec import encode_response
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from chronik.protocol.wire import ZERO_UUID, Buffer

FIRST_VERSION_WITH_CHOICE_OF_CREATION = 4
FIRST_VERSION_WITH_TOPIC_IDS_ASKED = 12
NO_OPERATIONS_ASKED = -2147483648
CREATIONS_AT_ONCE_MAX = 500
"""Topics that one request may create; further ones are answered as unknown, and the client asks again."""

KEPT_ENCODED_FROM_TOPICS = 100
"""With so many topics the answer about all of them is kept in its encoded form until the metadata changes."""

KEPT_ENCODED_MAX = 8
"""Such answers kept: one per version and kind of request."""

Answer = MetadataResponse | list[Buffer] | Coroutine[Any, Any, MetadataResponse]


def metadata(request: MetadataRequest, ctx: RequestContext) -> Answer:
    """Answer from the image; create first what is missing and may be created."""
    asked = request.topics
    if asked is None or (ctx.api_version == 0 and not asked):
        return _everything(request, ctx)
    if ctx.api_version < FIRST_VERSION_WITH_TOPIC_IDS_ASKED and any(topic.topic_id != ZERO_UUID for topic in asked):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Topic IDs are not supported in requests for version {ctx.api_version}."
        )
    image = ctx.store.image
    missing = [
        topic.name
        for topic in asked
        if topic.name is not None and topic.name not in image.topics and topic.topic_id == ZERO_UUID
    ]
    if missing and _may_create(request, ctx):
        return _create_and_answer(request, ctx, list(dict.fromkeys(missing)))
    return _response(request, ctx, _named_topics(ctx, asked, {}))


def metadata_failed(request: MetadataRequest, error: KafkaError) -> MetadataResponse:
    """The topics that were asked for carry the error; before v13 the response has none of its own."""
    asked = request.topics if request.topics else [MetadataRequestTopic(name="")]
    return MetadataResponse(
        error_code=error.code,
        topics=[
            MetadataResponseTopic(name=topic.name or "", topic_id=topic.topic_id, error_code=error.code)
            for topic in asked
        ],
    )


def _may_create(request: MetadataRequest, ctx: RequestContext) -> bool:
    wished = request.allow_auto_topic_creation or ctx.api_version < FIRST_VERSION_WITH_CHOICE_OF_CREATION
    return wished and ctx.services.configs.broker_bool("auto.create.topics.enable")


async def _create_and_answer(request: MetadataRequest, ctx: RequestContext, missing: list[str]) -> MetadataResponse:
    errors: dict[str, ErrorCode] = {}
    for name in missing[:CREATIONS_AT_ONCE_MAX]:
        try:
            await create_missing_topic(ctx.services, name)
        except KafkaError as error:
            # Whatever a retry may cure is "no leader yet" to a client that only asked for metadata.
            errors[name] = ErrorCode.LEADER_NOT_AVAILABLE if error.retriable else error.code
    assert request.topics is not None
    return _response(request, ctx, _named_topics(ctx, request.topics, errors))


def _everything(request: MetadataRequest, ctx: RequestContext) -> MetadataResponse | list[Buffer]:
    services = ctx.services
    image = services.store.image
    if len(image.topics) < KEPT_ENCODED_FROM_TOPICS:
        return _response(request, ctx, _all_topics(ctx))
    kind = (
        ctx.api_version,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
    )
    state = (image.version, controller_id(services))
    kept = services.encoded_metadata.get(kind)
    if kept is not None and kept[0] == state:
        return kept[1].addressed(ctx.correlation_id)
    encoded = EncodedResponse(encode_response(_response(request, ctx, _all_topics(ctx)), ctx.api_version, 0))
    if len(services.encoded_metadata) >= KEPT_ENCODED_MAX:
        services.encoded_metadata.clear()
    services.encoded_metadata[kind] = (state, encoded)
    return encoded.addressed(ctx.correlation_id)


# --- describing ------------------------------------------------------------------------------------------------------


def _response(request: MetadataRequest, ctx: RequestContext, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    services = ctx.services
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=seen.node_id, host=seen.host, port=seen.port, rack=seen.rack)
            for seen in known_brokers(services)
        ],
        cluster_id=services.store.image.cluster_id,
        controller_id=controller_id(services),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if request.include_topic_authorized_operations:
        response.topics = [_with_operations(topic) for topic in topics]
    return response


def _all_topics(ctx: RequestContext) -> list[MetadataResponseTopic]:
    described = ctx.services.topic_descriptions
    return [described.of(topic) for topic in ctx.store.image.topics.values()]


def _named_topics(
    ctx: RequestContext, asked: list[MetadataRequestTopic], errors: dict[str, ErrorCode]
) -> list[MetadataResponseTopic]:
    image = ctx.store.image
    described = ctx.services.topic_descriptions
    topics: list[MetadataResponseTopic] = []
    for wanted in asked:
        topic: TopicInfo | None
        if wanted.name is None or wanted.topic_id != ZERO_UUID:
            topic = image.topics_by_id.get(wanted.topic_id)
            missing = MetadataResponseTopic(
                name=wanted.name, topic_id=wanted.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
        else:
            topic = image.topics.get(wanted.name)
            missing = MetadataResponseTopic(name=wanted.name, error_code=_why_missing(wanted.name, errors))
        topics.append(described.of(topic) if topic is not None else missing)
        if topic is None:
            ctx.outcome = missing.error_code
    return topics


def _why_missing(name: str, errors: dict[str, ErrorCode]) -> ErrorCode:
    if name in errors:
        return errors[name]
    if name_problem(name) is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=TOPIC_OPERATIONS if not topic.error_code else NO_OPERATIONS_ASKED,
    )
