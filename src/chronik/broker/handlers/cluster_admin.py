"""UnregisterBroker, v0, and UpdateFeatures, v0–v2: forgetting a broker, and raising what the cluster can do.

A broker that is unregistered while it is alive registers again. A feature rises only to a level that every registered
broker supports; a level of 0 takes it back, which like any other lowering has to be asked for as a downgrade.

Deliberate gaps: a downgrade is carried out alike whether it was asked for as safe or as unsafe.
"""

from __future__ import annotations

from chronik.broker.context import RequestContext
from chronik.metadata.commands import RemoveBroker, SetFeatureLevel
from chronik.metadata.store import PROPOSE_TIMEOUT_S, as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.cluster import (
    FeatureUpdateKey,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
FIRST_VERSION_WITHOUT_RESULTS = 2


async def unregister_broker(request: UnregisterBrokerRequest, ctx: RequestContext) -> UnregisterBrokerResponse:
    try:
        result = await ctx.store.propose(RemoveBroker(request.broker_id))
    except Exception as error:
        raise as_kafka_error(error) from error
    result.raise_for_error()
    return UnregisterBrokerResponse(error_message=None)


def unregister_broker_failed(request: UnregisterBrokerRequest, error: KafkaError) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)


async def update_features(request: UpdateFeaturesRequest, ctx: RequestContext) -> UpdateFeaturesResponse:
    """Each feature by itself; from v2 on the first error speaks for all."""
    results: list[UpdatableFeatureResult] = []
    for update in request.feature_updates:
        result = UpdatableFeatureResult(feature=update.feature, error_message=None)
        results.append(result)
        try:
            await _update(request, ctx, update)
        except KafkaError as error:
            ctx.outcome = error.code
            result.error_code, result.error_message = error.code, error.message
    response = UpdateFeaturesResponse(results=results, error_message=None)
    failed = next((result for result in results if result.error_code), None)
    if failed is not None and ctx.api_version >= FIRST_VERSION_WITHOUT_RESULTS:
        response.error_code, response.error_message = failed.error_code, failed.error_message
    return response


def update_features_failed(request: UpdateFeaturesRequest, error: KafkaError) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)


async def _update(request: UpdateFeaturesRequest, ctx: RequestContext, update: FeatureUpdateKey) -> None:
    downgrade = update.allow_downgrade or update.upgrade_type in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)
    _check(ctx, update, downgrade)
    if request.validate_only:
        return
    timeout_s = min(PROPOSE_TIMEOUT_S, max(0.001, request.timeout_ms / 1000))
    try:
        result = await ctx.store.propose(
            SetFeatureLevel(update.feature, update.max_version_level, downgrade), timeout_s
        )
    except Exception as error:
        raise as_kafka_error(error) from error
    result.raise_for_error()


def _check(ctx: RequestContext, update: FeatureUpdateKey, downgrade: bool) -> None:
    image = ctx.store.image
    name, level = update.feature, update.max_version_level
    if not any(name in broker.features for broker in image.brokers.values()):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}: unknown feature."
        )
    if level < 0 or (level < image.features.get(name, 0) and not downgrade):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}: "
            "a lower level has to be asked for as a downgrade, and is 0 at the least.",
        )
