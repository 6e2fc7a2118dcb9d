"""One step of a member towards its target assignment (Rules 2 and 3 of `consumer_state`). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from chronik.groups.consumer_state import NOTHING, Assignment, Member, MemberState, overlaps


def next_step(
    member: Member,
    target: Assignment,
    target_epoch: int,
    held: Mapping[tuple[bytes, int], str],
    owned: Assignment | None,
) -> Member:
    """The member after its heartbeat. `owned` is what it says it has; None when it does not say."""
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or overlaps(owned, member.revoking):
            return member
    elif member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    return _towards(member, target, target_epoch, held, owned)


def _towards(
    member: Member,
    target: Assignment,
    target_epoch: int,
    held: Mapping[tuple[bytes, int], str],
    owned: Assignment | None,
) -> Member:
    kept: dict[bytes, frozenset[int]] = {}
    revoking: dict[bytes, frozenset[int]] = {}
    free: dict[bytes, frozenset[int]] = {}
    waiting = False
    for topic_id in sorted(member.assigned.keys() | target.keys()):
        has = member.assigned.get(topic_id, frozenset())
        wants = target.get(topic_id, frozenset())
        if has & wants:
            kept[topic_id] = has & wants
        if has - wants:
            revoking[topic_id] = has - wants
        missing = wants - has
        available = frozenset(p for p in missing if (topic_id, p) not in held)
        waiting = waiting or available != missing
        if available:
            free[topic_id] = available
    if revoking and (owned is None or overlaps(owned, revoking)):
        return msgspec.structs.replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
    assigned = {
        topic_id: kept.get(topic_id, frozenset()) | free.get(topic_id, frozenset())
        for topic_id in sorted(kept.keys() | free.keys())
    }
    return msgspec.structs.replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
        state=MemberState.UNRELEASED_PARTITIONS if waiting else MemberState.STABLE,
        assigned=assigned,
        revoking=NOTHING,
    )
