"""The codecs against other libraries, and what they refuse to unpack."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import snappy
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Compression, compress, decompress
from chronik.protocol.records import compression as limits
from chronik.protocol.records.lz4_frames import break_header, frame_content_bound, repair_header, xxh32
from harness.record_oracles import ALL_CODECS

REAL_CODECS = [codec for codec in ALL_CODECS if codec is not Compression.NONE]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

texts = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=10), st.integers(1, 20_000)),
)


def xerial_decode(data: bytes) -> bytes:
    assert data.startswith(XERIAL)
    out, position = b"", len(XERIAL)
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        out += snappy.decompress(data[position + 4 : position + 4 + size])
        position += 4 + size
    return out


THEIR_DECODERS = {
    Compression.GZIP: gzip.decompress,
    Compression.SNAPPY: xerial_decode,
    Compression.LZ4: lz4.frame.decompress,
    Compression.ZSTD: lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}
THEIR_ENCODERS = {
    Compression.GZIP: gzip.compress,
    Compression.SNAPPY: snappy.compress,
    Compression.LZ4: lambda data: lz4.frame.compress(data, block_linked=False),
    Compression.ZSTD: lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
}


@pytest.mark.parametrize("codec", REAL_CODECS)
@settings(max_examples=40, deadline=None)
@given(data=texts)
def test_other_libraries_read_what_we_compress_and_we_read_what_they_do(codec: Compression, data: bytes) -> None:
    assert THEIR_DECODERS[codec](compress(codec, data)) == data
    assert bytes(decompress(codec, THEIR_ENCODERS[codec](data))) == data
    assert bytes(decompress(codec, compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 32 * 1024 + 1, 3_000_000])
def test_sizes_around_block_borders_round_trip(codec: Compression, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert bytes(decompress(codec, memoryview(compress(codec, data)))) == data


def test_lz4_frames_have_independent_blocks_because_java_reads_no_others() -> None:
    frame = compress(Compression.LZ4, b"some bytes" * 50_000)
    assert frame[4] & 0x20


def test_xerial_framing_is_read_whatever_its_version_fields_say() -> None:
    block = snappy.compress(b"hello")
    little_endian = b"\x82SNAPPY\x00" + struct.pack("<ii", 1, 1)
    for header in (XERIAL, little_endian):
        framed = header + struct.pack(">i", len(block)) + block + struct.pack(">i", len(block)) + block
        assert bytes(decompress(Compression.SNAPPY, framed)) == b"hellohello"
    assert bytes(decompress(Compression.SNAPPY, XERIAL)) == b""


def test_gzip_streams_of_several_members_are_read_whole() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"a" * 100) + gzip.compress(b"b" * 70_000)) == (
        b"a" * 100 + b"b" * 70_000
    )


def test_more_gzip_members_than_any_producer_writes_are_refused() -> None:
    one = gzip.compress(b"")
    assert decompress(Compression.GZIP, one * limits.MAX_GZIP_MEMBERS) == b""
    with pytest.raises(KafkaError):
        decompress(Compression.GZIP, one * (limits.MAX_GZIP_MEMBERS + 1))


def test_lz4_and_zstd_streams_of_several_frames_are_read_whole() -> None:
    for codec in (Compression.LZ4, Compression.ZSTD):
        data = compress(codec, b"x" * 300_000) + compress(codec, b"y" * 5)
        assert bytes(decompress(codec, data)) == b"x" * 300_000 + b"y" * 5


BOMB_BYTES = 40 * 1024 * 1024


def bomb(codec: Compression) -> bytes:
    zeros = bytes(BOMB_BYTES)
    if codec is Compression.ZSTD:  # with and without a declared size, zstd is the most violent of them
        return zstandard.ZstdCompressor(write_content_size=False).compress(zeros)
    return compress(codec, zeros)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_bomb_is_refused_within_bounded_memory(codec: Compression) -> None:
    data = bomb(codec)
    limit = 4 * 1024 * 1024
    decompress(codec, compress(codec, b"warm up"))
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            decompress(codec, data, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert "smaller batches" in caught.value.message
    assert peak < 3 * limit


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_a_ratio_beyond_the_limit_is_refused_even_below_the_byte_limit(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RATIO_FREE_BYTES", 100_000)
    data = compress(codec, bytes(3_000_000))
    assert len(data) * limits.MAX_RATIO < 3_000_000 < limits.MAX_DECOMPRESSED_BYTES
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_an_honest_megabyte_of_one_letter_is_no_bomb(codec: Compression) -> None:
    data = b"x" * (1024 * 1024)
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_exactly_the_limit_passes_and_one_byte_more_does_not(codec: Compression) -> None:
    data = random.Random(1).randbytes(200_000)
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    with pytest.raises(KafkaError):
        decompress(codec, packed, len(data) - 1)


def test_a_snappy_block_that_claims_gigabytes_costs_nothing() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError):
            decompress(Compression.SNAPPY, claim)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_zstd_frame_that_claims_gigabytes_costs_nothing() -> None:
    claim = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\x01\x00\x00"
    with pytest.raises(KafkaError) as caught:
        decompress(Compression.ZSTD, claim)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_streams_torn_anywhere_are_refused(codec: Compression) -> None:
    data = compress(codec, random.Random(3).randbytes(300))
    whole_prefixes = {len(XERIAL)} if codec is Compression.SNAPPY else set()
    for cut in range(len(data)):
        if cut not in whole_prefixes:
            with pytest.raises(KafkaError):
                decompress(codec, data[:cut])


@pytest.mark.parametrize("codec", REAL_CODECS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_mutated_streams_raise_nothing_but_kafka_errors(codec: Compression, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(compress(codec, dice.randbytes(50) * dice.randint(1, 40)))
    for _ in range(dice.randint(1, 4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    try:
        decompress(codec, data, 1_000_000)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


def test_names_of_codecs_are_those_of_the_compression_type_setting() -> None:
    assert [Compression.named(codec.label) for codec in Compression] == list(Compression)
    assert Compression.named("uncompressed") is Compression.NONE
    with pytest.raises(ValueError, match="gzip"):
        Compression.named("brotli")


@given(st.binary(max_size=15))
def test_the_small_xxhash_agrees_with_the_real_one(data: bytes) -> None:
    assert xxh32(data) == xxhash.xxh32(data).intdigest()


@pytest.mark.parametrize("content_size", [0, 8])
def test_the_wrong_header_checksum_of_old_lz4_frames_is_put_right(content_size: int) -> None:
    frame = lz4.frame.compress(b"hello" * 100, block_linked=False, store_size=bool(content_size))
    end = 6 + content_size
    old = bytearray(frame)
    old[end] = (xxhash.xxh32(frame[:end]).intdigest() >> 8) & 0xFF
    assert bytes(old) != frame
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(bytes(old))
    assert repair_header(old) == frame
    assert repair_header(frame) == frame


def test_frames_made_for_old_clients_have_the_checksum_that_those_compute() -> None:
    frame = lz4.frame.compress(b"hello" * 100, block_linked=False, store_size=True)
    old = break_header(frame)
    assert not old[4] & 0x08
    assert old[6] == (xxhash.xxh32(old[:6]).intdigest() >> 8) & 0xFF
    assert lz4.frame.decompress(repair_header(old)) == b"hello" * 100


def test_things_that_are_no_lz4_frames_are_left_alone() -> None:
    for junk in (b"", b"\x04\x22\x4d", b"abcdefghijk", b"\x04\x22\x4d\x18\x09\x40\x00"):
        assert repair_header(junk) == junk
        assert frame_content_bound(junk) is None


@settings(max_examples=40, deadline=None)
@given(texts, st.booleans(), st.booleans(), st.sampled_from([4, 5, 6, 7]))
def test_the_bound_from_the_blocks_of_a_frame_is_never_too_small(
    data: bytes, block_checksum: bool, content_checksum: bool, block_size: int
) -> None:
    frame = lz4.frame.compress(
        data, block_size=block_size, block_checksum=block_checksum, content_checksum=content_checksum
    )
    bound = frame_content_bound(frame)
    assert bound is not None
    assert bound >= len(data)
    assert bytes(decompress(Compression.LZ4, frame)) == data


def test_deflate_without_its_gzip_frame_is_not_gzip() -> None:
    with pytest.raises(KafkaError) as caught:
        decompress(Compression.GZIP, zlib.compress(b"hello"))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
