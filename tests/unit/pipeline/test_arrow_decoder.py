"""The numpy decoder against two others: the record-by-record one of the protocol, and kafka-python's."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.client.fetched import FetchedBatches
from chronik.client.metadata import TopicPartition
from chronik.pipeline import arrow_decoder
from chronik.pipeline.arrow_decoder import MAX_ROWS, decode_batches
from chronik.pipeline.arrow_schema import TOPIC_COLUMNS
from chronik.protocol.errors import KafkaError
from chronik.protocol.records import Compression, Record, build_batch, parse_batches, read_records
from chronik.protocol.records.control import build_end_transaction_marker
from harness.record_oracles import ALL_CODECS, headers, kafka_python_batch, payloads, read_with_kafka_python

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def decoded(data: bytes, **limits: int) -> list[Row]:
    found: list[Row] = []
    for batch in decode_batches(data, parse_batches(data), topic="t", partition=3, **limits):
        batch.validate(full=True)
        assert batch.schema == TOPIC_COLUMNS
        assert set(batch.column("topic").to_pylist()) == {"t"} and set(batch.column("partition").to_pylist()) == {3}
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        lists = batch.column("headers").to_pylist()
        assert [] not in lists, "a record without headers has NULL"
        heads = [[(h["key"], h["value"]) for h in row or ()] for row in lists]
        plain = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
        for offset, key, value, time_us, head in zip(*plain, times, heads, strict=True):
            found.append((offset, time_us // 1000, key, value, head))
    return found


def expected(data: bytes) -> list[Row]:
    return [
        (r.offset, r.timestamp, r.key, r.value, list(r.headers))
        for info in parse_batches(data)
        if not info.is_control
        for r in read_records(memoryview(data)[info.position : info.end])
    ]


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches as they lie in a log: any codec, gaps between and inside them, some without records."""
    out = bytearray()
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 24))):
        offset += draw(st.integers(0, 3))
        rows = draw(st.lists(st.tuples(st.integers(0, 2), payloads, payloads, headers), max_size=6))
        base = offset
        records = []
        for gap, key, value, heads in rows:
            offset += gap
            stamp = draw(st.integers(-1, 2**42))
            records.append(Record(offset, stamp, key, value, heads))
            offset += 1
        trailing = draw(st.integers(0, 2))
        offset += trailing if records else trailing + 1
        out += build_batch(
            records,
            base_offset=base,
            compression=draw(st.sampled_from(ALL_CODECS)),
            log_append_time=draw(st.one_of(st.none(), st.integers(0, 2**42))),
            last_offset_delta=offset - base - 1,
        )
    return bytes(out)


@settings(max_examples=80, deadline=None)
@given(logs())
def test_decodes_what_the_record_by_record_decoder_decodes(data: bytes) -> None:
    assert decoded(data) == expected(data)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(payloads, payloads, headers), min_size=1, max_size=4), min_size=1, max_size=20))
def test_decodes_what_kafka_python_decodes(groups: list[list[tuple[bytes | None, bytes | None, list]]]) -> None:
    data = bytearray()
    for index, group in enumerate(groups):
        records = [Record(n, 1_000 + n, key, value, heads) for n, (key, value, heads) in enumerate(group)]
        data += kafka_python_batch(records, Compression(index % 5))
    assert decoded(bytes(data)) == read_with_kafka_python(data)


@settings(max_examples=40, deadline=None)
@given(logs(), st.data())
def test_reads_only_the_range_that_was_asked_for(data: bytes, draw: st.DataObject) -> None:
    every = expected(data)
    bounds = st.integers(parse_batches(data)[0].base_offset - 1, parse_batches(data)[-1].next_offset + 1)
    start, end = draw.draw(bounds), draw.draw(bounds)
    assert decoded(data, start=start, end=end) == [row for row in every if start <= row[0] < end]


def test_a_mixture_of_large_and_small_batches_is_walked_to_the_end_of_each() -> None:
    rng = random.Random(7)
    data, offset = bytearray(), 0
    for count in [1] * 30 + [3000] + [40] * 25 + [500]:
        records = [Record(offset + n, n, None, rng.randbytes(rng.randrange(200)), ()) for n in range(count)]
        data += build_batch(records, base_offset=offset)
        offset += count
    assert decoded(bytes(data)) == expected(bytes(data))


def test_rows_are_handed_over_in_bounded_batches() -> None:
    records = [Record(n, n, None, b"v", ()) for n in range(MAX_ROWS + 10)]
    data = bytes(build_batch(records))
    sizes = [batch.num_rows for batch in decode_batches(data, parse_batches(data), topic="t", partition=0)]
    assert sizes == [MAX_ROWS, 10]


@pytest.mark.parametrize("codec", [codec for codec in ALL_CODECS if codec is not Compression.NONE])
def test_what_compresses_very_well_is_not_decompressed_all_at_once(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_decoder, "MAX_CHUNK_BYTES", 100_000)
    data = b"".join(
        build_batch([Record(n, 0, None, bytes(40_000))], base_offset=n, compression=codec) for n in range(9)
    )
    assert len(data) < 20_000
    found = list(decode_batches(data, parse_batches(data), topic="t", partition=0, columns=["offset", "value"]))
    assert [batch.num_rows for batch in found] == [2, 2, 2, 2, 1]
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(9))


def test_a_batch_that_claims_more_records_than_it_has_bytes_for_is_refused_before_anything_is_allocated() -> None:
    data = build_batch([Record(0, 0, None, b"v")])
    claimed = 2_000_000
    struct.pack_into(">i", data, 23, claimed - 1)
    struct.pack_into(">i", data, 57, claimed)
    batches = parse_batches(data, check_crc=False)
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError, match="cannot be read"):
            list(decode_batches(data, batches, topic="t", partition=0))
        assert tracemalloc.get_traced_memory()[1] < claimed
    finally:
        tracemalloc.stop()


def test_says_which_kind_of_timestamp_it_is() -> None:
    data = bytes(build_batch([Record(0, 5, None, None)]) + build_batch([Record(1, 5, None, None)], log_append_time=9))
    (batch,) = decode_batches(data, parse_batches(data), topic="t", partition=0)
    assert batch.column("timestampType").to_pylist() == [0, 1]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [5_000, 9_000]


def test_gives_only_the_columns_that_were_asked_for_in_their_order() -> None:
    data = bytes(build_batch([Record(0, 5, b"k", b"v")]))
    (batch,) = decode_batches(data, parse_batches(data), topic="t", partition=0, columns=["value", "offset"])
    assert batch.to_pydict() == {"value": [b"v"], "offset": [0]}


def test_leaves_out_markers_and_what_was_aborted() -> None:
    def written(offset: int, value: bytes, producer_id: int) -> bytearray:
        records = [Record(offset, 0, None, value)]
        return build_batch(
            records, base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )

    def marker(offset: int, producer_id: int, *, committed: bool) -> bytearray:
        return build_end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=offset,
        )

    data = memoryview(
        written(0, b"aborted", 1)
        + written(1, b"kept", 2)
        + marker(2, 1, committed=False)
        + written(3, b"kept too", 1)
        + marker(4, 2, committed=True)
        + marker(5, 1, committed=True)
    )
    fetched = FetchedBatches(TopicPartition("t", 0), 0, data, parse_batches(data), [(1, 0)], 6, 6, 0)
    found = decode_batches(data, list(fetched.visible()), topic="t", partition=0, columns=["offset", "value"])
    assert [batch.to_pydict() for batch in found] == [{"offset": [1, 3], "value": [b"kept", b"kept too"]}]


def test_a_name_of_a_header_that_is_no_text_is_readable_all_the_same() -> None:
    data = bytes(build_batch([Record(0, 0, None, None, [("\udcff", b"x"), ("ok", None)])]))
    assert decoded(data)[0][4] == [("�", b"x"), ("ok", None)]


def test_a_timestamp_too_large_for_microseconds_is_the_largest_there_is() -> None:
    data = bytes(build_batch([Record(0, 2**62, None, None)]))
    (batch,) = decode_batches(data, parse_batches(data), topic="t", partition=0)
    assert batch.column("timestamp").cast(pa.int64())[0].as_py() > 9 * 10**18


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_damaged_records_are_refused_or_read_as_the_other_decoder_reads_them(data: bytes, draw: st.DataObject) -> None:
    """Bytes after the headers are changed at will; whatever the one decoder refuses, the other must refuse."""
    infos = [info for info in parse_batches(data) if info.record_count and info.compression is Compression.NONE]
    if not infos:
        return
    info = draw.draw(st.sampled_from(infos))
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        damaged[draw.draw(st.integers(info.position + 61, info.end - 1))] = draw.draw(st.integers(0, 255))
    infos = parse_batches(damaged, check_crc=False)

    def by_numpy() -> list[int]:
        found = decode_batches(damaged, infos, topic="t", partition=0, columns=["offset", "key", "value", "timestamp"])
        return [offset for batch in found for offset in batch.column("offset").to_pylist()]

    try:
        wanted = [
            r.offset for i in infos if i.record_count for r in read_records(memoryview(damaged)[i.position : i.end])
        ]
    except KafkaError:
        with pytest.raises(KafkaError):
            by_numpy()
    else:
        assert by_numpy() == wanted
