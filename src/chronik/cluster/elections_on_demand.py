"""ElectLeaders: elections that a client asks for, of preferred leaders or of unclean ones."""

from __future__ import annotations

from collections.abc import Callable

from chronik.cluster.elections import Standing, choose_unclean_leader
from chronik.cluster.messages import MAX_ELECTIONS_PER_REQUEST, ElectReply, ElectRequest
from chronik.cluster.partition_keeper import Key, PartitionKeeper
from chronik.metadata.commands import MAX_CHANGES_PER_COMMAND, LeaderChange, SetPartitionLeader
from chronik.metadata.image import MetadataImage
from chronik.metadata.model import NO_LEADER, PartitionInfo
from chronik.metadata.store import MetadataStore
from chronik.protocol.errors import ErrorCode, KafkaError

Refusal = tuple[ErrorCode, str]


async def elect_on_demand(
    keeper: PartitionKeeper, store: MetadataStore, request: ElectRequest, wake: Callable[[], None]
) -> ElectReply:
    """Starts the elections asked for, and waits for them as long as the request allows. Without a list, all partitions
    that need an election get one, and only they are reported."""
    image = store.image
    standing = Standing.of(image)
    refusals: dict[tuple[str, int], Refusal] = {}
    wanted: dict[tuple[str, int], int] = {}
    step_down: list[LeaderChange] = []
    names = request.partitions if request.partitions is not None else _all(image)
    if len(names) > MAX_ELECTIONS_PER_REQUEST and request.partitions is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {MAX_ELECTIONS_PER_REQUEST} elections at once")
    for name, number in names:
        partition = image.partition(name, number)
        refusal = _refusal(partition, standing, request.unclean)
        if partition is None or refusal is not None:
            refusals[name, number] = refusal or (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "unknown partition")
            continue
        key: Key = (image.topics[name].topic_id, number)
        if request.unclean:
            keeper.look_at(key, unclean=True)
            wanted[name, number] = NO_LEADER
        else:
            wanted[name, number] = partition.preferred_leader
            if partition.leader in standing.alive:
                step_down.append(LeaderChange(*key, NO_LEADER, partition.partition_epoch))
            else:
                keeper.look_at(key)
    for start in range(0, len(step_down), MAX_CHANGES_PER_COMMAND):
        await store.propose(SetPartitionLeader(step_down[start : start + MAX_CHANGES_PER_COMMAND]))
    wake()
    await store.wait_until(lambda now: all(_elected(now, *item) for item in wanted.items()), request.timeout_s)
    return _reply(store.image, wanted, refusals, everything=request.partitions is None)


def _all(image: MetadataImage) -> list[tuple[str, int]]:
    return [(topic.name, number) for topic, number, _ in image.each_partition()]


def _refusal(partition: PartitionInfo | None, standing: Standing, unclean: bool) -> Refusal | None:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    if unclean:
        if partition.leader in standing.alive:
            return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        if choose_unclean_leader(partition, standing) is None:
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is online."
        return None
    if partition.leader == partition.preferred_leader and partition.leader in standing.alive:
        return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if partition.preferred_leader not in standing.online or partition.preferred_leader not in partition.isr:
        return (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {partition.preferred_leader} is offline or not in sync.",
        )
    return None


def _elected(image: MetadataImage, place: tuple[str, int], leader: int) -> bool:
    partition = image.partition(*place)
    if partition is None:
        return True
    return partition.leader == leader if leader != NO_LEADER else partition.leader != NO_LEADER


def _reply(
    image: MetadataImage,
    wanted: dict[tuple[str, int], int],
    refusals: dict[tuple[str, int], Refusal],
    *,
    everything: bool,
) -> ElectReply:
    outcomes: list[tuple[str, int, int, str]] = []
    for (name, number), (code, message) in refusals.items():
        if not (everything and code == ErrorCode.ELECTION_NOT_NEEDED):
            outcomes.append((name, number, int(code), message))
    for place, leader in wanted.items():
        if _elected(image, place, leader):
            outcomes.append((*place, int(ErrorCode.NONE), ""))
        else:
            outcomes.append((*place, int(ErrorCode.REQUEST_TIMED_OUT), "The election has not finished in time."))
    return ElectReply(outcomes)
