"""ApiVersions, v0–v4: which APIs and versions this broker serves, and which features the cluster has.

The list is derived from the dispatch table: what is not implemented is not advertised. All versions from 0 are spoken,
also those that Kafka 4 dropped.

Deliberate gaps: `zk_migration_ready` is always false, there is no ZooKeeper.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chronik.broker.context import RequestContext, Services
from chronik.protocol.api import APIS, ApiKey
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from chronik.metadata.image import MetadataImage

FIRST_VERSION_WITH_SOFTWARE_NAME = 3
FIRST_VERSION_WITH_ZERO_MINIMUM = 4
"""Clients that speak less reject the whole answer when a feature's lowest version is 0."""

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(request: ApiVersionsRequest, ctx: RequestContext) -> ApiVersionsResponse:
    """Answer at once, whatever state the cluster is in."""
    if ctx.api_version >= FIRST_VERSION_WITH_SOFTWARE_NAME:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE_NAME.fullmatch(name) or not _SOFTWARE_NAME.fullmatch(version):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client's software name or version is not valid")
    image = ctx.store.image
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ctx.services.apis],
        supported_features=_supported_features(image, ctx.config.node_id, ctx.api_version),
        finalized_features_epoch=image.applied_index,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in sorted(image.features.items())
        ],
    )


def api_versions_failed(request: ApiVersionsRequest, error: KafkaError) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error.code)


def unsupported_version(services: Services) -> ApiVersionsResponse:
    """The answer, encoded as version 0, to a version we do not know; it names the versions to try instead."""
    api = APIS[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)],
    )


def _supported_features(image: MetadataImage, node_id: int, version: int) -> list[SupportedFeatureKey]:
    broker = image.brokers.get(node_id)
    if broker is None:
        return []
    return [
        SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, (low, high) in sorted(broker.features.items())
        if low > 0 or version >= FIRST_VERSION_WITH_ZERO_MINIMUM
    ]
