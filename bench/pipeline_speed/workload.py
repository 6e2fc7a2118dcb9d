"""The topics that are measured: JSON documents of one size, in batches of 16 KiB, spread over a few partitions."""

from __future__ import annotations

import json
from dataclasses import dataclass

from chronik.client import Cluster, Producer, ProducerSettings
from chronik.client.admin.topics import create_topic

PARTITIONS = 4
BATCH_BYTES = 16 * 1024
CITIES = ("Berlin", "Hamburg", "Köln", "Leipzig", "Ulm")
WARM_UP_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Load:
    """Rows of one size in one topic."""

    value_bytes: int
    rows: int

    @property
    def topic(self) -> str:
        return f"rows-of-{self.value_bytes}"

    @property
    def label(self) -> str:
        return "1 KiB" if self.value_bytes == 1024 else f"{self.value_bytes} B"

    @property
    def megabytes(self) -> float:
        """Of values alone."""
        return self.rows * self.value_bytes / 1e6


FULL = (Load(100, 2_000_000), Load(1024, 600_000))


def fill(bootstrap: str, load: Load) -> None:
    with Cluster(bootstrap) as cluster:
        create_topic(cluster, load.topic, partitions=PARTITIONS)
        with Producer(cluster, ProducerSettings(batch_bytes=BATCH_BYTES)) as producer:
            for number in range(load.rows):
                producer.send(load.topic, document(number, load.value_bytes), partition=number % PARTITIONS)


def document(number: int, size: int) -> bytes:
    """A JSON object of `size` bytes, with a whole number, a fraction, texts and a filling."""
    fields = {"id": number, "city": CITIES[number % len(CITIES)], "total": number % 9973 / 4, "pad": ""}
    empty = len(json.dumps(fields, ensure_ascii=False).encode())
    fields["pad"] = "x" * (size - empty)
    return json.dumps(fields, ensure_ascii=False).encode()
