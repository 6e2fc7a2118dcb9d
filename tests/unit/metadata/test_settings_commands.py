"""Configs, producer ids, the cluster's id and its features, as commands."""

from __future__ import annotations

import pytest

from chronik.metadata import commands as c
from chronik.metadata.model import ResourceType
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode
from harness.metadata_double import bring_up, local_store, registration

SET, DELETE, APPEND, SUBTRACT = (
    c.ConfigOperation.SET,
    c.ConfigOperation.DELETE,
    c.ConfigOperation.APPEND,
    c.ConfigOperation.SUBTRACT,
)


@pytest.fixture
async def store() -> MetadataStore:
    made = local_store()
    await bring_up(made, 1, 2)
    await made.propose(c.CreateTopic("t", b"t" * 16, ((1,),), {"retention.ms": "1", "segment.ms": "2"}))
    return made


async def change(store: MetadataStore, *changes: c.ConfigChange, replace: bool = False) -> dict[str, str]:
    result = await store.propose(c.SetConfig(ResourceType.TOPIC, "t", list(changes), replace))
    assert result.ok
    return store.image.topics["t"].configs


async def test_changes_are_incremental_and_replacing_forgets_the_rest(store: MetadataStore) -> None:
    assert await change(store, c.ConfigChange(SET, "retention.ms", "5"), c.ConfigChange(DELETE, "segment.ms")) == {
        "retention.ms": "5"
    }
    assert await change(store, c.ConfigChange(SET, "flush.ms", "9"), replace=True) == {"flush.ms": "9"}


async def test_appends_decided_at_the_same_time_all_count(store: MetadataStore) -> None:
    one = c.ConfigChange(APPEND, "cleanup.policy", "compact", "delete")
    other = c.ConfigChange(APPEND, "cleanup.policy", "extra,delete", "delete")
    await change(store, one)
    assert (await change(store, other))["cleanup.policy"] == "delete,compact,extra"
    assert (await change(store, c.ConfigChange(SUBTRACT, "cleanup.policy", "delete,extra")))[
        "cleanup.policy"
    ] == "compact"


async def test_a_config_of_a_topic_that_does_not_exist_is_refused(store: MetadataStore) -> None:
    result = await store.propose(c.SetConfig(ResourceType.TOPIC, "x", [c.ConfigChange(SET, "a", "b")]))
    assert result.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_configs_of_a_removed_broker_are_forgotten(store: MetadataStore) -> None:
    await store.propose(c.SetConfig(ResourceType.BROKER, "2", [c.ConfigChange(SET, "num.partitions", "3")]))
    assert store.image.config_overrides(ResourceType.BROKER, "2") == {"num.partitions": "3"}
    await store.propose(c.RemoveBroker(2))
    assert store.image.config_overrides(ResourceType.BROKER, "2") == {}


async def test_a_producer_id_is_given_only_once(store: MetadataStore) -> None:
    blocks = [(await store.propose(c.AllocateProducerIds(node, 1000))).value for node in (1, 2, 1)]
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]
    stale = await store.propose(c.AllocateProducerIds(1, 1000, broker_epoch=99))
    assert stale.error == ErrorCode.STALE_BROKER_EPOCH
    too_many = await store.propose(c.AllocateProducerIds(1, 2**63 - 1))
    assert not too_many.ok


async def test_the_first_cluster_id_holds_for_ever(store: MetadataStore) -> None:
    assert (await store.propose(c.SetClusterId("one"))).value == "one"
    second = await store.propose(c.SetClusterId("two"))
    assert not second.ok and second.value == "one"
    assert (await store.propose(c.SetClusterId("one"))).ok


async def test_a_feature_is_raised_only_when_every_broker_can(store: MetadataStore) -> None:
    refused = await store.propose(c.SetFeatureLevel("chronik.version", 2))
    assert refused.error == ErrorCode.INVALID_UPDATE_VERSION and "Broker 1" in refused.reason
    for node_id in (1, 2):
        await store.propose(registration(node_id, features={"chronik.version": (1, 2)}))
    assert (await store.propose(c.SetFeatureLevel("chronik.version", 2))).ok
    assert store.image.feature_level == 2
    back = await store.propose(c.SetFeatureLevel("chronik.version", 1, downgrade=True))
    assert not back.ok, "the cluster level never goes down: older nodes could not read the log"


async def test_a_new_cluster_has_the_new_group_and_transaction_protocols() -> None:
    assert local_store().image.features == {"chronik.version": 1, "group.version": 1, "transaction.version": 2}
