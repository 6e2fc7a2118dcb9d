"""Bytes that no honest client sends: every one is refused with `DecodeError`, before memory is spent on it."""

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.protocol import codec
from chronik.protocol.codec import DecodeError
from chronik.protocol.decoder import MAX_ELEMENTS
from chronik.protocol.messages.api_versions import ApiVersionsRequest
from chronik.protocol.messages.fetch import FetchRequest
from chronik.protocol.messages.group_offsets import OffsetFetchRequest
from chronik.protocol.messages.metadata import MetadataRequest
from chronik.protocol.messages.produce import ProduceRequest
from chronik.protocol.messages.topics import DeleteTopicsRequest
from chronik.protocol.wire import Message
from oracles.random_messages import MessageGenerator, every_message

CASES = [(cls, version) for api, cls in every_message() for version in range(api.min_version, api.max_version + 1)]
MUTATIONS_PER_CASE = 12
NASTY_BYTES = (b"\xff", b"\x7f", b"\x00", b"\x80", b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff")
MEMORY_LIMIT_BYTES = 1 << 20
"""Far above what a refused frame of a few bytes may cost, far below what the lengths in it ask for."""


def _decode_or_refuse(cls: type[Message], version: int, data: bytes) -> None:
    """Decode; what decodes can also be encoded, and what does not is a `DecodeError`."""
    try:
        message = codec.decode(cls, version, data)
    except DecodeError:
        return
    codec.encode(message, version)


def test_every_proper_prefix_of_a_message_is_refused() -> None:
    for cls, version in CASES:
        data = codec.encode(MessageGenerator((cls.__name__, version), tame=False).message(cls, version), version)
        step = max(1, len(data) // 40)
        for end in range(0, len(data), step):
            with pytest.raises(DecodeError):
                codec.decode(cls, version, data[:end])


def test_bytes_after_a_message_are_refused_unless_allowed() -> None:
    data = codec.encode(MetadataRequest(), 1) + b"x"
    with pytest.raises(DecodeError, match="followed by 1 bytes"):
        codec.decode(MetadataRequest, 1, data)
    assert codec.decode(MetadataRequest, 1, data, allow_trailing=True) == MetadataRequest()


def test_mutated_messages_decode_or_are_refused_and_cost_little() -> None:
    random = Random(9)
    for cls, version in CASES:
        codec.decoder(cls, version)
        codec.encoder(cls, version)
    tracemalloc.start()
    try:
        for cls, version in CASES:
            generator = MessageGenerator((cls.__name__, version, "mutated"), tame=False)
            data = bytearray(codec.encode(generator.message(cls, version), version))
            for _ in range(MUTATIONS_PER_CASE if data else 0):
                mutated = bytearray(data)
                position = random.randrange(len(mutated))
                value = random.choice(
                    (b"\xff", b"\x7f", b"\x00", b"\x80", b"\xff\xff\xff\xff\x07", random.randbytes(4))
                )
                mutated[position : position + len(value)] = value
                _decode_or_refuse(cls, version, bytes(mutated))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_LIMIT_BYTES


@pytest.mark.parametrize("filler", [0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF])
def test_frames_of_one_byte_value_decode_or_are_refused(filler: int) -> None:
    for cls, version in CASES:
        for length in (0, 1, 7, 64):
            _decode_or_refuse(cls, version, bytes([filler]) * length)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), st.binary(max_size=120))
def test_random_frames_decode_or_are_refused(case: tuple[type[Message], int], data: bytes) -> None:
    _decode_or_refuse(*case, data)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), st.randoms(use_true_random=False))
def test_random_messages_survive_a_round_trip(case: tuple[type[Message], int], random: Random) -> None:
    cls, version = case
    generator = MessageGenerator(0, tame=False)
    generator.random = random
    message = generator.message(cls, version)
    assert codec.decode(cls, version, codec.encode(message, version)) == message


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x00\x01\x00\x00", b"\x00\x00\x00\x03"])
def test_an_array_longer_than_the_bytes_that_are_left_is_refused_before_it_is_built(count: bytes) -> None:
    """Metadata v1: three names take six bytes at least, and five are there."""
    with pytest.raises(DecodeError, match="topics says"):
        codec.decode(MetadataRequest, 1, count + bytes(5))


def test_a_compact_array_longer_than_the_bytes_that_are_left_is_refused_before_it_is_built() -> None:
    """Metadata v9: a topic takes two bytes at least (an empty name and no tags)."""
    assert len(codec.decode(MetadataRequest, 9, b"\x03" + b"\x01\x00" * 2 + bytes(4)).topics or []) == 2
    with pytest.raises(DecodeError, match="topics says 5 elements"):
        codec.decode(MetadataRequest, 9, b"\x06" + bytes(9))
    with pytest.raises(DecodeError, match="topics says 2147483646 elements"):
        codec.decode(MetadataRequest, 9, b"\xff\xff\xff\xff\x07" + bytes(9))


def test_an_array_of_numbers_longer_than_the_bytes_that_are_left_is_refused() -> None:
    """Fetch v7: forgotten partitions, the last array of the message."""
    data = codec.encode(FetchRequest(), 7)
    forgotten = b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\x40\x00\x00\x00"
    with pytest.raises(DecodeError, match="partitions says 1073741824 elements"):
        codec.decode(FetchRequest, 7, data[:-4] + forgotten)


def test_all_arrays_of_a_message_share_one_limit_of_elements() -> None:
    too_many = MAX_ELEMENTS + 1
    names = too_many.to_bytes(4, "big") + bytes(2 * too_many)
    with pytest.raises(DecodeError, match="a message may have 1000000 in all its arrays"):
        codec.decode(DeleteTopicsRequest, 1, names + bytes(4))
    per_topic = MAX_ELEMENTS // 2
    topic = bytes(2) + per_topic.to_bytes(4, "big") + bytes(4 * per_topic)
    with pytest.raises(DecodeError, match="a message may have 1000000 in all its arrays"):
        codec.decode(OffsetFetchRequest, 1, bytes(2) + (2).to_bytes(4, "big") + topic * 2)


@pytest.mark.parametrize(
    ("cls", "version", "data", "what"),
    [
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "topics is null"),
        (MetadataRequest, 1, b"\x00\x00\x00\x01\xff\xff", "name is null"),
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x00\x00\x00", "topic_data is null"),
        (ApiVersionsRequest, 3, b"\x00\x01\x00", "client_software_name is null"),
    ],
)
def test_null_is_refused_where_the_version_does_not_allow_it(
    cls: type[Message], version: int, data: bytes, what: str
) -> None:
    with pytest.raises(DecodeError, match=what):
        codec.decode(cls, version, data)


def test_null_topics_are_allowed_from_metadata_version_1() -> None:
    assert codec.decode(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None


def test_a_string_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(DecodeError, match="not UTF-8"):
        codec.decode(MetadataRequest, 1, b"\x00\x00\x00\x01\x00\x02\xc3\x28")


def test_a_varint_of_more_than_five_bytes_or_beyond_an_int_is_refused() -> None:
    with pytest.raises(DecodeError, match="longer than five bytes"):
        codec.decode(MetadataRequest, 9, b"\xff\xff\xff\xff\xff\x01")
    with pytest.raises(DecodeError, match="beyond 2147483647"):
        codec.decode(MetadataRequest, 9, b"\xff\xff\xff\xff\x0f")


def test_a_message_that_reaches_into_the_next_frame_is_refused() -> None:
    """The buffer holds more bytes than the frame: they belong to somebody else."""
    data = codec.encode(MetadataRequest(topics=[]), 4) * 2
    with pytest.raises(DecodeError, match="needs 1 bytes more"):
        codec.decoder(MetadataRequest, 4)(memoryview(data), 0, 4)


@pytest.mark.parametrize(
    ("tags", "what"),
    [
        (b"\x01\x00\x7f\x00", "tagged field 0 says 127 bytes"),  # longer than what is left
        (b"\x7f\x00\x00\x00", "127 tagged fields cannot be"),  # more of them than bytes
        (b"\x01\x00\x03\x01\x00\x00", "does not have the size it says"),  # cluster_id: null takes one byte
        (b"\x01\x00", "1 tagged fields cannot be"),
    ],
)
def test_tagged_fields_that_lie_about_themselves_are_refused(tags: bytes, what: str) -> None:
    body = codec.encode(FetchRequest(), 12)[:-1]
    with pytest.raises(DecodeError, match=what):
        codec.decode(FetchRequest, 12, body + tags)
