"""Kafka's record formats: batches of magic 2, the message sets before them, and their compression.

No IO and no clock. The hot path needs `header` only; it checks and stamps batches without decoding records.

| Module | What lives there |
|---|---|
| `header` | the batch header: `parse_batches`, `stamp`, `BatchInfo` |
| `reading`, `building` | records out of a batch, and a batch out of records |
| `produce_rules` | what a client may send in Produce |
| `compression`, `lz4_frames` | the codecs, with bounded decompression |
| `message_sets` | the formats before magic 2 |
| `legacy` | between them and batches: `upconvert`, `downconvert` |
| `control` | transaction markers and other control records |
| `transform` | re-encoding for LogAppendTime and `compression.type`; deep validation |
"""

from chronik.protocol.records.building import build_batch
from chronik.protocol.records.compression import Compression, compress, decompress
from chronik.protocol.records.header import (
    HEADER_SIZE,
    BatchInfo,
    Buffer,
    batch_magic,
    parse_batches,
    parse_header,
    stamp,
)
from chronik.protocol.records.reading import Record, read_records

__all__ = [
    "HEADER_SIZE",
    "BatchInfo",
    "Buffer",
    "Compression",
    "Record",
    "batch_magic",
    "build_batch",
    "compress",
    "decompress",
    "parse_batches",
    "parse_header",
    "read_records",
    "stamp",
]
