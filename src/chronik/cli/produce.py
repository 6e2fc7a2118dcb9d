"""`chronik produce`: standard input, line by line, into a topic."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

from cyclopts import Parameter

from chronik.cli.session import Bootstrap, fail, open_cluster
from chronik.client.producer import Producer, ProducerSettings
from chronik.protocol.records.compression import Compression

LINGER_S = 0.05
READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 64 * 1024 * 1024


def produce(
    topic: str,
    *,
    key_separator: Annotated[
        str | None, Parameter(name=["--key-separator", "-K"], help="Splits key and value.")
    ] = None,
    header: Annotated[tuple[str, ...], Parameter(help="A header for every record, NAME=VALUE.")] = (),
    partition: Annotated[int | None, Parameter(help="Write to this partition; default by key, else in turn.")] = None,
    compression: Annotated[str, Parameter(help="none, gzip, snappy, lz4 or zstd")] = "none",
    acks: Annotated[str, Parameter(help="all, 1 or 0")] = "all",
    bootstrap: Bootstrap = None,
) -> None:
    """Write each line of standard input as a record; the topic is made if it is missing and the broker allows it."""
    if acks not in ("all", "1", "0"):
        fail(f"--acks {acks}: use all, 1 or 0")
    if compression.upper() not in Compression.__members__:
        fail(f"--compression {compression}: use none, gzip, snappy, lz4 or zstd")
    headers: list[tuple[str, bytes | None]] = []
    for pair in header:
        name, equals, content = pair.partition("=")
        if not equals:
            fail(f"--header {pair}: write it as NAME=VALUE")
        headers.append((name, content.encode()))
    settings = ProducerSettings(
        acks={"all": -1, "1": 1, "0": 0}[acks],
        compression=Compression[compression.upper()],
        idempotent=acks == "all",
    )
    separator = key_separator.encode() if key_separator else None
    sent = 0
    with open_cluster(bootstrap) as cluster, Producer(cluster, settings) as producer:
        for line in _lines(producer.flush):
            key, value = _split(line, separator)
            producer.send(topic, value, key=key, headers=headers, partition=partition)
            sent += 1
        producer.flush()
    if sys.stderr.isatty():
        print(f"wrote {sent} record(s) to {topic}", file=sys.stderr)


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        fail(f"the line {line[:60]!r} has no key separator {separator.decode()!r}")
    return key, value


def _lines(flush: Callable[[], None]) -> Iterator[bytes]:
    """The lines of standard input; whenever it pauses, what was read so far is sent."""
    source = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115 - standard input stays open
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(source, selectors.EVENT_READ)
        except (PermissionError, ValueError):
            yield from (line.rstrip(b"\n") for line in sys.stdin.buffer)  # a plain file is always ready
            return
        rest = b""
        while True:
            if not selector.select(LINGER_S):
                flush()
                selector.select()
            chunk = source.read(READ_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
            if len(rest) > LINE_BYTES_MAX:
                fail(f"a line is longer than {LINE_BYTES_MAX} bytes; split the input into lines")
        if rest:
            yield rest
