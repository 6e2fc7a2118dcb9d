"""Other people's implementations of Kafka's record formats, brought to one shape for comparison with ours."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka.record.memory_records import MemoryRecords as AioMemoryRecords
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from chronik.protocol.records import Compression, Record

Row = tuple[int, int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

ALL_CODECS = list(Compression)
OLD_CODECS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]

payloads = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(1, 300)),
)
headers = st.lists(st.tuples(st.text(max_size=6), st.one_of(st.none(), st.binary(max_size=12))), max_size=3)
timestamps = st.integers(0, 2**45)


@st.composite
def record_lists(draw: st.DrawFn, *, with_headers: bool = True, max_size: int = 12) -> list[Record]:
    """Records with offsets from 0, as a producer numbers them."""
    rows = draw(
        st.lists(
            st.tuples(timestamps, payloads, payloads, headers if with_headers else st.just([])),
            min_size=1,
            max_size=max_size,
        )
    )
    return [Record(offset, ts, key, value, hs) for offset, (ts, key, value, hs) in enumerate(rows)]


def rows(records: Sequence[Record]) -> list[Row]:
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


def kafka_python_batch(records: Sequence[Record], codec: Compression, **producer: int) -> bytearray:
    settings = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "is_transactional": False} | producer
    builder = DefaultRecordBatchBuilder(magic=2, compression_type=int(codec), batch_size=1 << 24, **settings)
    for r in records:
        assert builder.append(r.offset, r.timestamp, r.key, r.value, list(r.headers)) is not None
    return bytearray(builder.build())


def kafka_python_message_set(records: Sequence[Record], magic: int, codec: Compression) -> bytes:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=int(codec), batch_size=1 << 24)
    for r in records:
        assert builder.append(r.offset, r.timestamp, r.key, r.value) is not None
    return bytes(builder.build())


def read_with_kafka_python(data: bytes | bytearray | memoryview) -> list[Row]:
    found: list[Row] = []
    for batch in MemoryRecords(bytes(data)):
        assert batch.validate_crc()
        found += [_row(r) for r in batch]
    return found


def read_with_aiokafka(data: bytes | bytearray | memoryview) -> list[Row]:
    found: list[Row] = []
    reader = AioMemoryRecords(bytes(data))
    while (batch := reader.next_batch()) is not None:
        assert batch.validate_crc()
        found += [_row(r) for r in batch]
    return found


def _row(r: object) -> Row:
    return (
        r.offset,  # type: ignore[attr-defined]
        r.timestamp,  # type: ignore[attr-defined]
        None if r.key is None else bytes(r.key),  # type: ignore[attr-defined]
        None if r.value is None else bytes(r.value),  # type: ignore[attr-defined]
        [(name, value) for name, value in r.headers],  # type: ignore[attr-defined]
    )
