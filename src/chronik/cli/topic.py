"""`chronik topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from chronik.cli.output import show_json, show_table
from chronik.cli.session import AsJson, Bootstrap, fail, open_cluster, settings_of
from chronik.client.admin.configs import ConfigSource, ResourceType, alter_configs, describe_configs
from chronik.client.admin.topics import (
    BROKER_DEFAULT,
    create_partitions,
    create_topic,
    delete_topics,
    describe_topics,
    list_topics,
)

app = App(name="topic", help="Create, list, describe, alter and delete topics.")


@app.command
def create(
    name: str,
    *,
    partitions: Annotated[int, Parameter(help="How many; default num.partitions of the broker.")] = BROKER_DEFAULT,
    replication_factor: Annotated[int, Parameter(help="Copies; default 3, or as many as nodes.")] = BROKER_DEFAULT,
    config: Annotated[tuple[str, ...], Parameter(help="A topic setting, NAME=VALUE. May be repeated.")] = (),
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Create a topic.

    Example: chronik topic create orders --partitions 3 --config retention.ms=86400000
    """
    with open_cluster(bootstrap) as cluster:
        made = create_topic(
            cluster,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=settings_of(config, "--config"),
        )
    if json:
        show_json({"name": made.name, "topic_id": made.topic_id.hex(), "partitions": made.partitions})
    else:
        print(
            f"created topic {made.name} with {made.partitions} partition(s), {made.replication_factor} replica(s) each"
        )


@app.command(name="list")
def list_(
    *,
    internal: Annotated[bool, Parameter(help="Show internal topics too.")] = False,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """List the topics.

    Example: chronik topic list --json
    """
    with open_cluster(bootstrap) as cluster:
        topics = list_topics(cluster, include_internal=internal)
    rows = [
        (topic.name, len(topic.partitions), max((len(p.replicas) for p in topic.partitions.values()), default=0))
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]
    if json:
        show_json([{"name": name, "partitions": count, "replication_factor": factor} for name, count, factor in rows])
    else:
        show_table(("topic", "partitions", "replicas"), rows, "no topics yet; make one with: chronik topic create NAME")


@app.command
def describe(name: str, *, bootstrap: Bootstrap = None, json: AsJson = False) -> None:
    """Show a topic's partitions and the settings that differ from the defaults.

    Example: chronik topic describe orders
    """
    with open_cluster(bootstrap) as cluster:
        (topic,) = describe_topics(cluster, [name])
        settings = describe_configs(cluster, ResourceType.TOPIC, name)
    changed = {entry.name: entry.value for entry in settings if entry.source is ConfigSource.TOPIC}
    partitions = [topic.partitions[index] for index in sorted(topic.partitions)]
    if json:
        document: dict[str, Any] = {"name": name, "topic_id": topic.topic_id.hex(), "configs": changed}
        document["partitions"] = [
            {"partition": p.index, "leader": p.leader, "epoch": p.leader_epoch, "replicas": p.replicas, "isr": p.isr}
            for p in partitions
        ]
        show_json(document)
        return
    print(f"topic {name}, id {topic.topic_id.hex()}")
    for key, value in changed.items():
        print(f"  {key}={value}")
    rows = [(p.index, p.leader, p.leader_epoch, _ids(p.replicas), _ids(p.isr)) for p in partitions]
    show_table(("partition", "leader", "epoch", "replicas", "in sync"), rows, "no partitions")


@app.command
def alter(
    name: str,
    *,
    partitions: Annotated[int | None, Parameter(help="Grow to so many partitions.")] = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", help="Change a setting, NAME=VALUE.")] = (),
    unset: Annotated[tuple[str, ...], Parameter(help="Take a setting back to its default.")] = (),
    bootstrap: Bootstrap = None,
) -> None:
    """Change a topic's settings, or give it more partitions.

    Example: chronik topic alter orders --set retention.ms=3600000 --partitions 6
    """
    changes: dict[str, str | None] = {**settings_of(set_, "--set"), **dict.fromkeys(unset)}
    if not changes and partitions is None:
        fail("nothing to change; give --set NAME=VALUE, --unset NAME or --partitions N")
    with open_cluster(bootstrap) as cluster:
        if changes:
            alter_configs(cluster, ResourceType.TOPIC, name, changes)
        if partitions is not None:
            create_partitions(cluster, name, partitions)
    print(f"changed topic {name}")


@app.command
def delete(*names: str, bootstrap: Bootstrap = None) -> None:
    """Delete topics and everything in them.

    Example: chronik topic delete orders
    """
    if not names:
        fail("name at least one topic")
    with open_cluster(bootstrap) as cluster:
        results = delete_topics(cluster, names)
    failed = [result for result in results if result.error is not None]
    for result in results:
        if result.error is None:
            print(f"deleted topic {result.name}")
    if failed:
        fail("; ".join(f"{result.name}: {result.error}" for result in failed))


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))
