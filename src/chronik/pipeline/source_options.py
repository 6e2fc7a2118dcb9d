"""The options of `format("chronik")`: those of Spark's Kafka source, by the same names, checked before it runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from chronik.client import EARLIEST, LATEST, Isolation
from chronik.client.metadata import TopicPartition

T = TypeVar("T")
N = TypeVar("N", int, None)

BOOTSTRAP = "kafka.bootstrap.servers"

DEFAULT_FETCH_BYTES = 64 * 1024 * 1024
DEFAULT_PARTITION_FETCH_BYTES = 8 * 1024 * 1024

DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
"""How long the driver may take to write one micro-batch; the tasks have done their work by then."""

# Settings of Kafka's own client that mean nothing here: they tune it, or name a group that is not used for reading.
_WITHOUT_MEANING = {
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafka.group.id",
    "kafka.client.id",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.session.timeout.ms",
    "kafka.request.timeout.ms",
    "kafka.max.poll.records",
    "kafka.linger.ms",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "checkpointlocation",
    "queryname",
    "path",
}

_READ = {
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
    "minpartitions",
    "maxoffsetspertrigger",
    "failondataloss",
    "includeheaders",
    BOOTSTRAP,
    "kafka.isolation.level",
    "kafka.security.protocol",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
}

_WRITE = {
    "topic",
    "delivery",
    BOOTSTRAP,
    "kafka.acks",
    "kafka.compression.type",
    "kafka.transaction.timeout.ms",
    "kafka.security.protocol",
    "includeheaders",
}


class OptionError(ValueError):
    """An option that cannot be used; the text names it and says what can."""


@dataclass(frozen=True)
class Subscription:
    """Which partitions are read; exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class Position:
    """Where reading starts or ends.

    `offset` is EARLIEST or LATEST for every partition, `offsets` gives one for each; with `timestamp_ms`, or
    `timestamps`, it is the first record at or after a time.
    """

    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class ReadOptions:
    bootstrap: str
    subscription: Subscription
    starting: Position | None
    ending: Position
    latest_when_no_record_is_that_new: bool
    min_partitions: int
    max_offsets_per_trigger: int | None
    fail_on_data_loss: bool
    include_headers: bool
    isolation: Isolation
    max_fetch_bytes: int
    max_partition_fetch_bytes: int


@dataclass(frozen=True)
class WriteOptions:
    bootstrap: str
    topic: str | None
    acks: int
    compression: str
    exactly_once: bool
    transaction_timeout_ms: int


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check and read the options of a source. OptionError names what is wrong."""
    given = _known(options, _READ, "read")
    starting = _position(given, "starting")
    return ReadOptions(
        bootstrap=_bootstrap(given),
        subscription=_subscription(given),
        starting=starting,
        ending=_position(given, "ending") or Position(offset=LATEST),
        latest_when_no_record_is_that_new=_one_of(
            given, "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, "error"
        ),
        min_partitions=_number(given, "minPartitions", 0),
        max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger", None),
        fail_on_data_loss=_one_of(given, "failOnDataLoss", _BOOLEAN, "true"),
        include_headers=_one_of(given, "includeHeaders", _BOOLEAN, "false"),
        isolation=_one_of(
            given,
            "kafka.isolation.level",
            {"read_committed": Isolation.READ_COMMITTED, "read_uncommitted": Isolation.READ_UNCOMMITTED},
            "read_committed",
        ),
        max_fetch_bytes=_number(given, "kafka.fetch.max.bytes", DEFAULT_FETCH_BYTES),
        max_partition_fetch_bytes=_number(given, "kafka.max.partition.fetch.bytes", DEFAULT_PARTITION_FETCH_BYTES),
    )


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Check and read the options of a stream, which has no end. OptionError names what is wrong."""
    ends = sorted(name for name in options if name.lower().startswith("ending"))
    if ends:
        raise OptionError(f"option {ends[0]} is for batch reads: a stream goes on. Read a batch, or leave it out")
    return read_options(options)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check and read the options of a sink. OptionError names what is wrong."""
    given = _known(options, _WRITE, "write")
    exactly_once = _one_of(given, "delivery", {"at_least_once": False, "exactly_once": True}, "at_least_once")
    acks = _one_of(given, "kafka.acks", {"all": -1, "-1": -1, "1": 1, "0": 0}, "all")
    if exactly_once and acks != -1:
        raise OptionError("delivery=exactly_once needs kafka.acks=all: what a crash can lose is not written once")
    return WriteOptions(
        bootstrap=_bootstrap(given),
        topic=given.get("topic"),
        acks=acks,
        compression=given.get("kafka.compression.type", "none"),
        exactly_once=exactly_once,
        transaction_timeout_ms=_number(given, "kafka.transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS),
    )


_BOOLEAN = {"true": True, "false": False}


def _known(options: Mapping[str, str], known: set[str], doing: str) -> dict[str, str]:
    given = {name.lower(): str(value) for name, value in options.items()}
    for name in sorted(given):
        if name in known or name in _WITHOUT_MEANING:
            continue
        if name.startswith(("kafka.ssl.", "kafka.sasl.")):
            raise OptionError(f"option {name} cannot be used: this source connects without TLS and passwords for now")
        raise OptionError(
            f"option {name} is not known to format('chronik') for a {doing}; it knows {', '.join(sorted(known))}"
        )
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise OptionError(f"kafka.security.protocol={protocol} cannot be used: only PLAINTEXT is offered for now")
    return given


def _bootstrap(given: Mapping[str, str]) -> str:
    bootstrap = given.get(BOOTSTRAP) or os.environ.get("CHRONIK_BOOTSTRAP")
    if not bootstrap:
        raise OptionError(f"option {BOOTSTRAP} is missing; name at least one node, such as 127.0.0.1:9092")
    return bootstrap


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) != 1:
        said = f"{' and '.join(chosen)} were given" if chosen else "none was given"
        raise OptionError(f"give exactly one of subscribe, subscribePattern and assign; {said}")
    if chosen == ["subscribe"]:
        topics = tuple(sorted({name.strip() for name in given["subscribe"].split(",") if name.strip()}))
        if not topics:
            raise OptionError("option subscribe names no topic; write it as subscribe=orders,payments")
        return Subscription(topics=topics)
    if chosen == ["subscribePattern"]:
        try:
            re.compile(given["subscribepattern"])
        except re.error as error:
            raise OptionError(f"option subscribePattern is no regular expression: {error}") from None
        return Subscription(pattern=given["subscribepattern"])
    example = '{"orders": [0, 1]}'
    lists = _json(given["assign"], "assign", example)
    for indexes in lists.values():
        if not isinstance(indexes, list) or not all(type(index) is int for index in indexes):
            raise OptionError(f"option assign must look like {example}")
    places = {TopicPartition(topic, index) for topic, indexes in lists.items() for index in indexes}
    if not places:
        raise OptionError(f"option assign names no partition; write it as {example}")
    return Subscription(partitions=tuple(sorted(places)))


def _position(given: Mapping[str, str], end: str) -> Position | None:
    """The most specific of the options that say where one end is: a time for all, times, offsets."""
    every, each, offsets = f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"
    if every.lower() in given:
        return Position(timestamp_ms=_number(given, every, 0, least=0))
    if each.lower() in given:
        times = _per_partition(given[each.lower()], each)
        if any(at < 0 for at in times.values()):
            raise OptionError(f"option {each} holds a negative timestamp; they are milliseconds since 1970")
        return Position(timestamps=times)
    text = given.get(offsets.lower())
    if text is None:
        return None
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if named is not None:
        if end == "ending" and named == EARLIEST:
            raise OptionError("endingOffsets=earliest would read nothing; use latest or offsets")
        return Position(offset=named)
    found = _per_partition(text, offsets)
    if any(offset < EARLIEST for offset in found.values()):
        raise OptionError(f"option {offsets} holds an offset below -2; -2 is earliest, -1 is latest")
    if end == "ending" and EARLIEST in found.values():
        raise OptionError("option endingOffsets holds -2 (earliest), which would read nothing; use -1 for latest")
    return Position(offsets=found)


def _per_partition(text: str, option: str) -> dict[TopicPartition, int]:
    example = '{"orders": {"0": 23, "1": -2}}'
    found: dict[TopicPartition, int] = {}
    for topic, positions in _json(text, option, example).items():
        for index, at in positions.items() if isinstance(positions, dict) else [("", None)]:
            if not _is_digits(index) or type(at) is not int:
                raise OptionError(f"option {option} must look like {example}")
            found[TopicPartition(topic, int(index))] = at
    return found


def _json(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise OptionError(f"option {option} must be earliest, latest or JSON such as {example}, not {text!r}")
    return document


def _number(given: Mapping[str, str], name: str, default: N, *, least: int = 1) -> int | N:
    text = given.get(name.lower())
    if text is None:
        return default
    if not _is_digits(text.strip()) or int(text) < least:
        raise OptionError(f"option {name} must be a whole number, {least} or more, not {text!r}")
    return int(text)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _one_of(given: Mapping[str, str], name: str, values: Mapping[str, T], default: str) -> T:
    text = given.get(name.lower(), default).strip().lower()
    if text not in values:
        raise OptionError(f"option {name} must be one of {', '.join(values)}, not {text!r}")
    return values[text]
