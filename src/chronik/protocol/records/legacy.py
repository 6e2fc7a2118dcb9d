"""Between message sets (magic 0 and 1) and batches (magic 2): what old producers send, and what old consumers read.

Pure functions that decode every record: a caller with an event loop runs them elsewhere. The formats themselves are in
`message_sets`, `reading` and `building`.
"""

from __future__ import annotations

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records.building import build_batch
from chronik.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression
from chronik.protocol.records.header import Buffer, parse_batches
from chronik.protocol.records.message_sets import iterate_messages, read_message_set, write_message_set
from chronik.protocol.records.reading import read_records


def upconvert(message_set: Buffer, *, limit: int = MAX_DECOMPRESSED_BYTES) -> bytearray:
    """Convert what a Produce request of version 0–2 carries into one batch of magic 2, with offsets from 0.

    The codec of the (last) wrapper becomes the codec of the batch, as Kafka does it. Messages without timestamps get
    none: −1. Raises KafkaError for whatever a broker refuses.
    """
    compression = Compression.NONE
    for message in iterate_messages(message_set):
        if message.log_append_time:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                "a producer may not set the timestamp type LogAppendTime; the broker does, by message.timestamp.type",
            )
        codec = message.compression
        if codec is not Compression.NONE:
            compression = codec
    records = read_message_set(message_set, limit=limit)
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the message set holds no messages; send at least one")
    for offset, record in enumerate(records):
        record.offset = offset
    return build_batch(records, compression=compression)


def downconvert(batches: Buffer, magic: int, *, first_offset: int = 0) -> bytes:
    """Convert stored batches into a message set of magic 0 or 1, as Fetch versions 0–3 carry it.

    Control batches are left out, since old consumers do not know them; so are record headers. Uncompressed records
    below `first_offset` are left out, compressed ones stay in their wrapper. Each batch keeps its codec; zstd, which
    no old consumer reads, raises UNSUPPORTED_COMPRESSION_TYPE, as in Kafka.
    """
    if magic not in (0, 1):
        raise ValueError(f"message sets have magic 0 or 1, not {magic}")
    out = bytearray()
    view = memoryview(batches)
    for info in parse_batches(view, check_crc=False):
        if info.is_control:
            continue
        compression = info.compression
        if compression is Compression.ZSTD:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"the batch at offset {info.base_offset} is compressed with zstd, which needs a consumer that speaks "
                "Fetch v10 or newer; upgrade the consumer",
            )
        records = read_records(view[info.position : info.end])
        if compression is Compression.NONE:
            records = [record for record in records if record.offset >= first_offset]
        write_message_set(out, magic, records, compression=compression, log_append_time=info.log_append_time)
    return bytes(out)
