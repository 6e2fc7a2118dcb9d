"""What operators ask of any node: answered from what the cluster knows, not from what this node happens to know."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chronik.broker.administration import MEMBERS_LOOK_S, Administration
from chronik.cluster.membership import replicas_on
from chronik.metadata import commands as c
from chronik.metadata.model import BrokerStatus
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import KafkaError
from harness.metadata_double import SharedLog, bring_up, registration

TOPIC_ID = b"t" * 16
TIMEOUT_S = 5.0


class RaftDouble:
    """A group that has no members but the first three."""

    def __init__(self, voters: tuple[int, ...] = (1, 2, 3), *, quorum: bool = True) -> None:
        self.voters = voters
        self.quorum = quorum
        self.came_back: dict[int, bytes] = {}
        """Voters that run with another folder than this one, with which they vote."""

    def status(self) -> Any:
        members = {node_id: SimpleNamespace(directory_id=self.came_back.get(node_id)) for node_id in self.voters}
        return SimpleNamespace(
            configuration=SimpleNamespace(voters=members, observers={}),
            peers={node_id: SimpleNamespace(voter=True, same_folder=False) for node_id in self.came_back},
            has_quorum_without=lambda node_id: self.quorum,
        )


async def two_nodes() -> tuple[SharedLog, MetadataStore, MetadataStore]:
    """The stores of two nodes, four brokers, and a topic that has a replica on broker 4."""
    log = SharedLog()
    first, second = log.join(MetadataStore()), log.join(MetadataStore())
    await bring_up(first, 1, 2, 3, 4)
    assert (await first.propose(c.CreateTopic("events", TOPIC_ID, ((1, 2, 4),), {}))).ok
    return log, first, second


def administration(store: MetadataStore) -> Administration:
    return Administration(2, store, RaftDouble())  # type: ignore[arg-type]


async def move_away_from_4(store: MetadataStore) -> None:
    await store.propose(c.AssignPartition([c.Reassignment(TOPIC_ID, 0, (1, 2, 3))]))
    state = store.image.topics["events"].partitions[0]
    change = c.IsrChange(TOPIC_ID, 0, state.leader_epoch, state.partition_epoch, (1, 2, 3, 4))
    await store.propose(c.UpdateIsr(state.leader, [change]))
    assert (await store.propose(c.FinishAssignment([c.FinishedAssignment(TOPIC_ID, 0, -1)]))).ok
    assert replicas_on(store.image, 4) == 0


async def test_a_node_that_was_drained_can_be_removed_through_a_node_that_had_not_heard_of_it() -> None:
    log, first, second = await two_nodes()
    log.hold(second)
    await move_away_from_4(first)
    assert replicas_on(second.image, 4) == 1
    removing = asyncio.create_task(administration(second).run("remove-node", {"node_id": 4}, TIMEOUT_S))
    await second.wait_until(lambda image: 4 in image.nodes, TIMEOUT_S)
    await first.propose(c.RemoveBroker(4))
    assert (await removing)["removed"]


async def test_removing_a_node_that_never_was_a_member_is_refused_and_names_the_members() -> None:
    _, first, _ = await two_nodes()
    with pytest.raises(KafkaError, match=r"Node 9 is not a member; the members are 1, 2, 3, 4\."):
        await administration(first).run("remove-node", {"node_id": 9}, TIMEOUT_S)
    assert 9 not in first.image.nodes, "nothing was decided about it"


@pytest.mark.parametrize(
    ("voters", "why"),
    [((4,), "it is the only voter"), ((1, 4, 7), r"the voters that are left \(1, 7\) would be no quorum")],
)
async def test_a_removal_that_would_leave_no_quorum_is_refused(voters: tuple[int, ...], why: str) -> None:
    _, first, _ = await two_nodes()
    await move_away_from_4(first)
    asked = Administration(2, first, RaftDouble(voters, quorum=False))  # type: ignore[arg-type]
    with pytest.raises(KafkaError, match=f"Node 4 cannot be removed now: {why}; add or start another node first"):
        await asked.run("remove-node", {"node_id": 4, "force": True}, TIMEOUT_S)
    assert 4 not in first.image.nodes, "nothing was decided about it"


async def test_a_node_that_lost_its_folder_is_added_with_the_new_one_when_it_has_registered() -> None:
    _, first, second = await two_nodes()
    known = first.image.brokers[3]
    raft = RaftDouble()
    raft.came_back[3] = known.directory_id
    asked = Administration(2, second, raft)  # type: ignore[arg-type]
    adding = asyncio.create_task(asked.run("add-node", {"node_id": 3}, TIMEOUT_S))
    assert not await second.wait_until(lambda image: 3 in image.nodes, 2 * MEMBERS_LOOK_S)
    new_folder = b"n" * 16
    await first.propose(c.UpdateBrokerStatus(3, BrokerStatus.OFFLINE, known.epoch))
    registered = await first.propose(registration(3, life=2, directory_id=new_folder, seen_epoch=known.epoch))
    assert registered.ok, registered
    await second.wait_until(lambda image: 3 in image.nodes, TIMEOUT_S)
    assert second.image.nodes[3].directory_id == new_folder
    await first.propose(c.ConfirmNode(3, new_folder))
    assert (await adding)["voter"]


async def test_a_node_that_does_not_register_with_its_new_folder_is_not_added() -> None:
    _, first, _ = await two_nodes()
    raft = RaftDouble()
    raft.came_back[3] = first.image.brokers[3].directory_id
    asked = Administration(2, first, raft)  # type: ignore[arg-type]
    with pytest.raises(KafkaError, match="Node 3 runs with another data folder than it is registered with") as refused:
        await asked.run("add-node", {"node_id": 3}, MEMBERS_LOOK_S)
    assert refused.value.retriable
    assert 3 not in first.image.nodes, "nothing was decided about it"


async def test_removing_a_node_again_says_that_it_is_removed() -> None:
    _, first, _ = await two_nodes()
    await move_away_from_4(first)
    await first.propose(c.RemoveNode(4))
    await first.propose(c.RemoveBroker(4))
    assert (await administration(first).run("remove-node", {"node_id": 4}, TIMEOUT_S))["removed"]


async def test_a_node_that_was_given_replicas_is_kept_by_a_node_that_had_not_heard_of_it() -> None:
    log, first, second = await two_nodes()
    await move_away_from_4(first)
    log.hold(second)
    assert (await first.propose(c.CreateTopic("more", b"m" * 16, ((4,),), {}))).ok
    with pytest.raises(KafkaError, match="still holds 1 replicas"):
        await administration(second).run("remove-node", {"node_id": 4}, TIMEOUT_S)


async def test_nothing_is_placed_on_a_node_after_its_drain_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, _ = await two_nodes()
    asked = administration(first)
    planned_at: list[BrokerStatus] = []
    planned = asked._planned

    async def noting(make: Any) -> Any:
        planned_at.append(first.image.brokers[4].status)
        return await planned(make)

    monkeypatch.setattr(asked, "_planned", noting)
    plan = await asked.run("drain", {"node_id": 4}, TIMEOUT_S)
    assert plan["moves"] == 1 and first.image.brokers[4].status is BrokerStatus.ONLINE, "showing it changes nothing"
    await asked.run("drain", {"node_id": 4, "execute": True}, TIMEOUT_S)
    assert planned_at == [BrokerStatus.ONLINE, BrokerStatus.MAINTENANCE]
    with pytest.raises(KafkaError, match="draining node 4 already"):
        await asked.run("drain", {"node_id": 3, "execute": True}, TIMEOUT_S)
    assert first.image.brokers[3].status is BrokerStatus.ONLINE, "a drain that does not begin changes nothing"
    asked.stop()


async def test_a_drained_node_can_be_taken_back() -> None:
    _, first, _ = await two_nodes()
    asked = administration(first)
    await first.propose(c.UpdateBrokerStatus(4, BrokerStatus.MAINTENANCE, maintenance=True))
    assert await asked.run("undrain", {"node_id": 4}, TIMEOUT_S) == {"node_id": 4, "status": "online"}
    assert first.image.brokers[4].online and not first.image.brokers[4].maintenance
    await first.propose(c.UpdateBrokerStatus(4, BrokerStatus.OFFLINE, maintenance=True))
    assert (await asked.run("undrain", {"node_id": 4}, TIMEOUT_S))["status"] == "offline", "it is not here yet"
    assert not first.image.brokers[4].alive and not first.image.brokers[4].maintenance


@pytest.mark.parametrize(
    ("pace", "why"),
    [
        *(({"at_once": wrong}, "From 1 to 1000 partitions") for wrong in (0, -1, 1001, "many")),
        *(({"throttle": wrong}, "at least 1 byte per second") for wrong in (0, -1, "fast")),
    ],
)
@pytest.mark.parametrize("action", ["drain", "rebalance"])
async def test_a_pace_that_cannot_be_is_refused(action: str, pace: dict[str, Any], why: str) -> None:
    """With less than one at once a plan would never end, and keep the node from everything else meanwhile."""
    _, first, _ = await two_nodes()
    with pytest.raises(KafkaError, match=why):
        await administration(first).run(action, {"node_id": 4, "execute": True, **pace}, TIMEOUT_S)
    assert first.image.brokers[4].online
