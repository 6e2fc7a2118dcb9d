"""`chronik group`: list, describe and delete consumer groups, and move their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter

from chronik.cli.output import show_json, show_table
from chronik.cli.session import AsJson, Bootstrap, fail, open_cluster
from chronik.client.admin.groups import (
    GroupMember,
    commit_offsets,
    committed_offsets,
    delete_groups,
    describe_group,
    group_lag,
    list_groups,
)
from chronik.client.cluster import Cluster
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import earliest_offsets, end_offsets, offsets_for_time, partitions_of
from chronik.protocol.errors import ErrorCode, KafkaError

app = App(name="group", help="List, describe and delete groups; move their offsets.")

EMPTY_STATES = frozenset({"Empty", "Dead"})


@app.command(name="list")
def list_(*, bootstrap: Bootstrap = None, json: AsJson = False) -> None:
    """List the groups of the cluster.

    Example: chronik group list
    """
    with open_cluster(bootstrap) as cluster:
        groups = list_groups(cluster)
    if json:
        show_json([{"group": g.group_id, "state": g.state, "type": g.group_type} for g in groups])
    else:
        rows = [(g.group_id, g.state, g.group_type) for g in groups]
        show_table(("group", "state", "type"), rows, "no groups yet; a consumer with a group.id makes one")


@app.command
def describe(name: str, *, bootstrap: Bootstrap = None, json: AsJson = False) -> None:
    """Show a group's members, its offsets, and how far it is behind.

    Example: chronik group describe billing
    """
    with open_cluster(bootstrap) as cluster:
        group = describe_group(cluster, name)
        lags = group_lag(cluster, name)
    owners = _owners(group.members)
    if json:
        show_json(
            {
                "group": name,
                "state": group.state,
                "assignor": group.assignor,
                "coordinator": group.coordinator_id,
                "lag": sum(lag.lag or 0 for lag in lags),
                "members": [
                    {
                        "member_id": m.member_id,
                        "instance_id": m.instance_id,
                        "client_id": m.client_id,
                        "host": m.client_host,
                        "partitions": [{"topic": p.topic, "partition": p.partition} for p in m.assigned],
                    }
                    for m in group.members
                ],
                "offsets": [
                    {
                        "topic": lag.place.topic,
                        "partition": lag.place.partition,
                        "committed": lag.committed,
                        "end": lag.end,
                        "lag": lag.lag,
                    }
                    for lag in lags
                ],
            }
        )
        return
    total = sum(lag.lag or 0 for lag in lags)
    print(
        f"group {name}: {group.state}, {len(group.members)} member(s), coordinator {group.coordinator_id}, lag {total}"
    )
    rows = [
        (lag.place.topic, lag.place.partition, lag.committed, lag.end, lag.lag, owners.get(lag.place, "-"))
        for lag in lags
    ]
    show_table(("topic", "partition", "committed", "end", "lag", "member"), rows, "no committed offsets")


@app.command
def delete(*names: str, bootstrap: Bootstrap = None) -> None:
    """Delete groups that have no members, and their offsets.

    Example: chronik group delete billing
    """
    if not names:
        fail("name at least one group")
    with open_cluster(bootstrap) as cluster:
        results = delete_groups(cluster, names)
    for name, error in results.items():
        if error is None:
            print(f"deleted group {name}")
    failed = [f"{name}: {_why(error)}" for name, error in results.items() if error is not None]
    if failed:
        fail("; ".join(failed))


@app.command
def reset_offsets(
    name: str,
    *,
    topic: Annotated[tuple[str, ...], Parameter(help="A topic, or TOPIC:0,1,… May be repeated.")] = (),
    to_earliest: Annotated[bool, Parameter(negative="", help="To the first record there is.")] = False,
    to_latest: Annotated[bool, Parameter(negative="", help="To the end: only new records.")] = False,
    to_offset: Annotated[int | None, Parameter(help="To this offset.")] = None,
    to_time: Annotated[str | None, Parameter(help="To a time: 2026-11-15T10:00, or milliseconds since 1970.")] = None,
    shift: Annotated[int | None, Parameter(help="By so many records, forward or (negative) back.")] = None,
    execute: Annotated[bool, Parameter(negative="", help="Do it; without this it is only shown.")] = False,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Move the offsets of a group that has no members. Shows what would change; --execute does it.

    Without --topic all partitions are moved that the group has committed.
    Example: chronik group reset-offsets billing --topic orders --to-time 2026-11-15T10:00 --execute
    """
    chosen = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift is not None]
    if sum(chosen) != 1:
        fail("say where to: one of --to-earliest, --to-latest, --to-offset N, --to-time TIME, --shift N")
    with open_cluster(bootstrap) as cluster:
        committed = {place: found.offset for place, found in committed_offsets(cluster, name).items()}
        places = _places(cluster, topic) or sorted(committed)
        if not places:
            fail(f"group {name} has no offsets; name the topics with --topic")
        first, last = earliest_offsets(cluster, places), end_offsets(cluster, places)
        if to_earliest:
            wanted = dict(first)
        elif to_latest:
            wanted = dict(last)
        elif to_offset is not None:
            wanted = dict.fromkeys(places, to_offset)
        elif to_time is not None:
            wanted = offsets_for_time(cluster, places, _milliseconds(to_time))
        else:
            wanted = _shifted(places, committed, shift or 0)
        wanted = {place: min(max(wanted[place], first[place]), last[place]) for place in places}
        if execute:
            _refuse_members(cluster, name)
            commit_offsets(cluster, name, wanted)
    _show_reset(committed, wanted, execute, json)


def _places(cluster: Cluster, topics: tuple[str, ...]) -> list[TopicPartition]:
    places: list[TopicPartition] = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        known = sorted(partitions_of(cluster, name))
        if not colon:
            places += known
            continue
        try:
            asked = [TopicPartition(name, int(number)) for number in numbers.split(",")]
        except ValueError:
            fail(f"--topic {text}: write partitions as numbers, for example --topic {name}:0,1")
        missing = [place.partition for place in asked if place not in known]
        if missing:
            fail(f"topic {name} has partitions 0 to {len(known) - 1}, not {missing[0]}")
        places += asked
    return places


def _shifted(
    places: list[TopicPartition], committed: Mapping[TopicPartition, int], shift: int
) -> dict[TopicPartition, int]:
    missing = [place for place in places if place not in committed]
    if missing:
        fail(f"the group has committed nothing for {missing[0].topic}-{missing[0].partition} to shift from")
    return {place: committed[place] + shift for place in places}


def _milliseconds(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"--to-time {text}: write it like 2026-11-15T10:00 or 2026-11-15T10:00+01:00, or as milliseconds")
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _refuse_members(cluster: Cluster, name: str) -> None:
    try:
        group = describe_group(cluster, name)
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return  # committing offsets makes the group
    if group.state not in EMPTY_STATES:
        fail(f"group {name} is {group.state} with {len(group.members)} member(s); stop them, then move its offsets")


def _show_reset(
    committed: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int], executed: bool, json: bool
) -> None:
    if json:
        show_json(
            {
                "executed": executed,
                "offsets": [
                    {"topic": p.topic, "partition": p.partition, "from": committed.get(p), "to": offset}
                    for p, offset in sorted(wanted.items())
                ],
            }
        )
        return
    rows = [(p.topic, p.partition, committed.get(p, "-"), offset) for p, offset in sorted(wanted.items())]
    show_table(("topic", "partition", "from", "to"), rows, "nothing to move")
    print("moved" if executed else "nothing was changed; add --execute to do it")


def _owners(members: list[GroupMember]) -> dict[TopicPartition, str]:
    return {place: f"{m.client_id}{m.client_host}" for m in members for place in m.assigned}


def _why(error: KafkaError) -> str:
    if error.code is ErrorCode.NON_EMPTY_GROUP:
        return "it has members; stop them first"
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return "there is no such group"
    return error.message or error.code.name
