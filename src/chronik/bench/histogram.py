"""Latencies: every sample is counted, in buckets whose width is below one per cent of their value.

Percentiles are read from the buckets (their upper ends); the largest sample is kept exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

SUB_BUCKET_BITS = 7
"""Buckets per doubling: 2**7, so that a bucket is at most 1/128 of its value wide."""

_NS_PER_MS = 1e6


class Histogram(msgspec.Struct):
    """Counts of durations in nanoseconds. Plain data, so that it travels between processes as JSON."""

    counts: dict[int, int] = {}
    total: int = 0
    max_ns: int = 0

    def record(self, duration_ns: int, count: int = 1) -> None:
        """Count a duration; a negative one (clocks of two processes) counts as zero."""
        duration_ns = max(duration_ns, 0)
        bucket = bucket_of(duration_ns)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += count
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns

    def record_series(self, first_ns: int, step_ns: int, count: int) -> None:
        """Count `count` durations, the first the longest, each `step_ns` shorter than the one before."""
        if step_ns == 0:
            self.record(first_ns, count)
            return
        for index in range(count):
            self.record(first_ns - index * step_ns)

    def add(self, other: Histogram) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_ms(self, percent: float) -> float:
        """The duration that `percent` of the samples do not exceed; 0 when there are none."""
        wanted = self.total * percent / 100.0
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(upper_end(bucket), self.max_ns) / _NS_PER_MS
        return self.max_ns / _NS_PER_MS

    @property
    def max_ms(self) -> float:
        return self.max_ns / _NS_PER_MS


def merged(histograms: Iterable[Histogram]) -> Histogram:
    together = Histogram()
    for histogram in histograms:
        together.add(histogram)
    return together


def bucket_of(value: int) -> int:
    """The number of the bucket of a value; numbers grow with values."""
    shift = max(value.bit_length() - SUB_BUCKET_BITS - 1, 0)
    return (shift << (SUB_BUCKET_BITS + 1)) | (value >> shift)


def upper_end(bucket: int) -> int:
    """The largest value of a bucket."""
    shift = bucket >> (SUB_BUCKET_BITS + 1)
    base = bucket & ((1 << (SUB_BUCKET_BITS + 1)) - 1)
    return ((base + 1) << shift) - 1
