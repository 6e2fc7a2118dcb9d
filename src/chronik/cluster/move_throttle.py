"""Holding a plan to a rate, by the settings that Kafka has for it: what every node may send per second to replicas that
are being moved, and the topics for which that counts. They are set before the first move and put back after the last.

Only replicas that are not in sync are held back, so a whole topic can be named. Whoever looks at the settings meanwhile
sees them. A node that dies in the middle of its plan leaves them behind; the next plan with a rate sets them anew, and
`chronik topic alter` or Kafka's tools can take them away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog

from chronik.cluster.rebalance import Move
from chronik.metadata.commands import ConfigChange, ConfigOperation, SetConfig
from chronik.metadata.model import ResourceType
from chronik.metadata.store import MetadataStore

RATE = "leader.replication.throttled.rate"
REPLICAS = "leader.replication.throttled.replicas"
ALL_REPLICAS = "*"

log = structlog.get_logger()

Place = tuple[ResourceType, str, str]
"""A resource, and the name of a setting of it."""


@asynccontextmanager
async def held_to(store: MetadataStore, moves: Iterable[Move], bytes_per_s: int | None) -> AsyncIterator[None]:
    """While it lasts, no node sends more than this to all replicas that these moves make; None is no limit."""
    if bytes_per_s is None:
        yield
        return
    wanted: dict[Place, str] = {
        (ResourceType.BROKER, str(node_id), RATE): str(bytes_per_s) for node_id in sorted(store.image.brokers)
    }
    wanted.update({(ResourceType.TOPIC, topic, REPLICAS): ALL_REPLICAS for topic in {move.topic for move in moves}})
    before: dict[Place, str | None] = {}
    try:
        for place, value in wanted.items():
            resource, name, setting = place
            before[place] = store.image.config_overrides(resource, name).get(setting)
            await _set(store, place, value)
        yield
    finally:
        await _put_back(store, before)


async def _put_back(store: MetadataStore, before: dict[Place, str | None]) -> None:
    for place, value in before.items():
        try:
            await _set(store, place, value)
        except Exception as error:
            log.warning(
                "the throttle of moves could not be taken back; remove these settings by hand",
                settings=[RATE, REPLICAS],
                reason=str(error) or repr(error),
            )
            return


async def _set(store: MetadataStore, place: Place, value: str | None) -> None:
    """A topic that is deleted meanwhile has no settings any more, which is as good."""
    resource, name, setting = place
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    await store.propose(SetConfig(resource, name, [ConfigChange(operation, setting, value)]))
