"""`chronik consume`: the records of a topic, from where one likes, for as long as one likes."""

from __future__ import annotations

import base64
import sys
import time
from datetime import datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from chronik.cli.session import AsJson, Bootstrap, fail, open_cluster
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer, ConsumerSettings
from chronik.client.fetched import ConsumerRecord
from chronik.client.metadata import TopicPartition
from chronik.client.offsets import EARLIEST, LATEST, Isolation, end_offsets, offsets_for_time, partitions_of

POLL_S = 0.5


def consume(
    topic: str,
    *,
    from_: Annotated[
        str, Parameter(name="--from", help="earliest, latest, an offset, or a time such as 2026-01-31T12:00")
    ] = "latest",
    partition: Annotated[tuple[int, ...], Parameter(help="Only these partitions.")] = (),
    max_: Annotated[int | None, Parameter(name="--max", help="Stop after so many records.")] = None,
    until_end: Annotated[bool, Parameter(help="Stop where the log ended when the command started.")] = False,
    timeout: Annotated[float | None, Parameter(help="Stop when nothing came for so many seconds.")] = None,
    committed: Annotated[bool, Parameter(help="Leave out records of open and aborted transactions.")] = False,
    keys: Annotated[bool, Parameter(help="Print the key and a tab before each value.")] = False,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Print the records of a topic, a line each."""
    for option, number in (("--max", max_), ("--timeout", timeout)):
        if number is not None and number < 0:
            fail(f"{option} {number}: use 0 or more")
    isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
    try:
        with open_cluster(bootstrap) as cluster:
            places = _places(cluster, topic, partition)
            ends = end_offsets(cluster, places, isolation=isolation) if until_end else None
            starts = _starts(cluster, places, from_)
            with Consumer(cluster, starts, ConsumerSettings(isolation=isolation)) as consumer:
                _print_records(consumer, places, ends, max_, timeout, keys=keys, json=json)
    except KeyboardInterrupt:
        pass  # the ordinary way to end it


def _print_records(
    consumer: Consumer,
    places: list[TopicPartition],
    ends: dict[TopicPartition, int] | None,
    limit: int | None,
    timeout: float | None,
    *,
    keys: bool,
    json: bool,
) -> None:
    shown = 0
    quiet_since = time.monotonic()
    write = sys.stdout.buffer.write
    while limit is None or shown < limit:
        if ends is not None and all(consumer.position(place) >= ends[place] for place in places):
            return
        records = consumer.poll(POLL_S)
        if records:
            quiet_since = time.monotonic()
        elif timeout is not None and time.monotonic() - quiet_since > timeout:
            return
        for record in records:
            if ends is not None and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                continue
            write(_as_json(record) if json else _as_text(record, keys=keys))
            shown += 1
            if shown == limit:
                break
        sys.stdout.flush()


def _places(cluster: Cluster, topic: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    places = partitions_of(cluster, topic)
    missing = set(wanted) - {place.partition for place in places}
    if missing:
        fail(f"topic {topic} has no partition {min(missing)}; it has {len(places)}, from 0 to {len(places) - 1}")
    return [place for place in places if not wanted or place.partition in wanted]


def _starts(cluster: Cluster, places: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    if start in ("earliest", "latest"):
        return dict.fromkeys(places, EARLIEST if start == "earliest" else LATEST)
    if start.isdigit():
        return dict.fromkeys(places, int(start))
    try:
        moment = datetime.fromisoformat(start)
    except ValueError:
        fail(f"--from {start}: use earliest, latest, an offset, or a time such as 2026-01-31T12:00")
    return dict(offsets_for_time(cluster, places, int(moment.timestamp() * 1000)))


def _as_text(record: ConsumerRecord, *, keys: bool) -> bytes:
    value = record.value if record.value is not None else b""
    return (record.key or b"") + b"\t" + value + b"\n" if keys else value + b"\n"


def _as_json(record: ConsumerRecord) -> bytes:
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_readable("key", record.key),
        **_readable("value", record.value),
        "headers": [{"name": name, **_readable("value", value)} for name, value in record.headers],
    }
    return msgspec.json.encode(document) + b"\n"


def _readable(field: str, value: bytes | None) -> dict[str, str | None]:
    """Bytes as text; what is no text as `<field>_base64`."""
    if value is None:
        return {field: None}
    try:
        return {field: value.decode()}
    except UnicodeDecodeError:
        return {f"{field}_base64": base64.b64encode(value).decode()}
