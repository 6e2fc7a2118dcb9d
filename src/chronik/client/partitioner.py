"""Which partition a record goes to: the same one that Java's producer chooses for the same key."""

from __future__ import annotations

import random

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit Murmur2, as an unsigned number."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = (int.from_bytes(data[start : start + 4], "little") * _M) & _MASK
        word = ((word ^ (word >> 24)) * _M) & _MASK
        value = ((value * _M) & _MASK) ^ word
    if length != whole:
        value = ((value ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    value = ((value ^ (value >> 13)) * _M) & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key: equal keys go to equal partitions, whichever client writes them."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Partitions for records without keys: one stays chosen until its batch is sent, so that batches are full."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._chosen: dict[str, int] = {}

    def partition(self, topic: str, partition_count: int) -> int:
        chosen = self._chosen.get(topic)
        if chosen is None or chosen >= partition_count:
            chosen = self._chosen[topic] = self._random.randrange(partition_count)
        return chosen

    def batch_sent(self, topic: str, partition: int, partition_count: int) -> None:
        """Move on to another partition once the batch of the chosen one is on its way."""
        if self._chosen.get(topic) == partition and partition_count > 1:
            self._chosen[topic] = (partition + self._random.randrange(1, partition_count)) % partition_count
