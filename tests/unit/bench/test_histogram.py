"""Latencies are counted one by one and read back within one per cent."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.bench.histogram import Histogram, bucket_of, merged, upper_end


@given(st.integers(min_value=0, max_value=10**13))
def test_a_value_lies_within_one_per_cent_below_the_end_of_its_bucket(value: int) -> None:
    end = upper_end(bucket_of(value))
    assert value <= end <= value * 1.01


def test_percentiles_agree_with_those_of_the_sorted_samples() -> None:
    source = random.Random(7)
    samples = [round(source.lognormvariate(13, 1.2)) for _ in range(20_000)]
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    samples.sort()
    for percent in (50, 90, 99, 99.9):
        exact_ms = samples[int(len(samples) * percent / 100) - 1] / 1e6
        assert histogram.percentile_ms(percent) == pytest.approx(exact_ms, rel=0.01)
    assert histogram.max_ms == samples[-1] / 1e6


def test_no_percentile_is_above_the_largest_sample() -> None:
    histogram = Histogram()
    histogram.record(1_000_001)
    assert histogram.percentile_ms(99.9) == histogram.max_ms == 1.000001


def test_a_series_counts_every_message_of_a_batch_from_when_it_was_due() -> None:
    histogram = Histogram()
    histogram.record_series(10_000_000, 1_000_000, 10)
    assert histogram.total == 10
    assert histogram.max_ms == 10
    assert histogram.percentile_ms(10) == pytest.approx(1.0, rel=0.01)


def test_histograms_of_workers_add_up_after_their_way_through_json() -> None:
    one, two = Histogram(), Histogram()
    one.record(5_000_000, 3)
    two.record(9_000_000)
    sent = [msgspec.json.decode(msgspec.json.encode(part), type=Histogram) for part in (one, two)]
    together = merged(sent)
    assert (together.total, together.max_ns) == (4, 9_000_000)
    assert together.percentile_ms(75) == pytest.approx(5.0, rel=0.01)


def test_two_histograms_do_not_share_their_counts() -> None:
    Histogram().record(1)
    assert Histogram().counts == {}


def test_an_empty_histogram_has_zero_percentiles() -> None:
    assert Histogram().percentile_ms(99) == 0.0
