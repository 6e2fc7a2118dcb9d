"""Request and response frames: headers old and new, lengths, and which buffers come out."""

import pytest

from chronik.protocol import codec
from chronik.protocol.api import APIS, ApiKey, request_class, response_class
from chronik.protocol.codec import DecodeError, EncodeError, UnsupportedVersion
from chronik.protocol.encoder import JOIN_BELOW_BYTES
from chronik.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chronik.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from chronik.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chronik.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


def _frame(hexadecimal: str) -> memoryview:
    return memoryview(bytes.fromhex(hexadecimal))


def test_an_old_request_header_has_no_tagged_fields() -> None:
    header = codec.decode_request_header(_frame("0003 0001 0000002a 0002 6d65 ffffffff"))
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (3, 1, 42, "me")
    assert header.body == b"\xff\xff\xff\xff"


def test_a_flexible_request_header_has_an_old_client_id_and_tagged_fields() -> None:
    header = codec.decode_request_header(_frame("0003 0009 00000001 0001 61 00 01020304"))
    assert header.client_id == "a"
    assert header.body == b"\x01\x02\x03\x04"


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    header = codec.decode_request_header(_frame("0003 0009 00000001 ffff 01 05 02 abcd ee"))
    assert header.client_id is None
    assert header.body == b"\xee"


def test_a_client_id_may_be_null() -> None:
    assert codec.decode_request_header(_frame("0003 0001 00000001 ffff")).client_id is None


def test_a_header_of_an_unknown_api_or_version_still_gives_the_correlation_id() -> None:
    assert codec.decode_request_header(_frame("7fff 0000 00000007 0000 99")).correlation_id == 7
    header = codec.decode_request_header(_frame("0012 0063 00000008 0000"))
    assert (header.api_version, header.correlation_id) == (99, 8)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "0003",
        "0003 0001 00000001",
        "0003 0001 00000001 0005 6162",
        "0003 0009 00000001 0000",
        "0003 0009 00000001 0000 01",
    ],
)
def test_a_header_that_ends_early_is_refused(frame: str) -> None:
    with pytest.raises(DecodeError):
        codec.decode_request_header(_frame(frame))


def test_a_client_id_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(DecodeError, match="UTF-8"):
        codec.decode_request_header(_frame("0003 0001 00000001 0002 c328"))


@pytest.mark.parametrize("key", sorted(APIS))
def test_every_request_frame_is_read_back_by_the_other_side(key: int) -> None:
    cls = request_class(key)
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        for client_id in (None, "", "клиент"):
            data = b"".join(codec.encode_request(cls(), version, 77, client_id))
            assert int.from_bytes(data[:4], "big") == len(data) - 4
            header = codec.decode_request_header(memoryview(data)[4:])
            assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 77)
            assert header.client_id == client_id
            assert codec.decode(cls, version, header.body) == cls()


@pytest.mark.parametrize("key", sorted(APIS))
def test_every_response_frame_is_read_back_by_the_other_side(key: int) -> None:
    cls = response_class(key)
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        data = b"".join(codec.encode_response(cls(), version, -5))
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        assert codec.decode_response(cls, version, memoryview(data)[4:]) == (-5, cls())


def test_flexible_responses_have_a_tagged_header_except_api_versions() -> None:
    old = b"".join(codec.encode_response(MetadataResponse(), 8, 1))
    new = b"".join(codec.encode_response(MetadataResponse(), 9, 1))
    assert old[8:] == codec.encode(MetadataResponse(), 8)
    assert new[8:] == b"\0" + codec.encode(MetadataResponse(), 9)
    for version in range(APIS[ApiKey.API_VERSIONS].max_version + 1):
        frame = b"".join(codec.encode_response(ApiVersionsResponse(), version, 1))
        assert frame[8:] == codec.encode(ApiVersionsResponse(), version)


def test_a_response_frame_that_ends_early_or_late_is_refused() -> None:
    frame = b"".join(codec.encode_response(MetadataResponse(), 9, 1))[4:]
    for bad in (b"", frame[:3], frame[:4], frame[:-1], frame + b"\0"):
        with pytest.raises(DecodeError):
            codec.decode_response(MetadataResponse, 9, memoryview(bad))


def _fetched(records: object) -> FetchResponse:
    partition = PartitionData(records=records)  # type: ignore[arg-type]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


@pytest.mark.parametrize("version", [4, 12])
def test_large_records_leave_as_the_very_buffer_that_was_given(version: int) -> None:
    records = memoryview(bytearray(JOIN_BELOW_BYTES))
    frame = codec.encode_response(_fetched(records), version, 1)
    assert len(frame) == 3
    assert frame[1] is records
    _, answer = codec.decode_response(FetchResponse, version, memoryview(b"".join(frame))[4:])
    assert answer.responses[0].partitions[0].records == records


@pytest.mark.parametrize("version", [4, 12])
def test_small_records_are_joined_with_the_rest_of_the_frame(version: int) -> None:
    frame = codec.encode_response(_fetched(memoryview(bytes(100))), version, 1)
    assert len(frame) == 1


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("size", [0, 10, JOIN_BELOW_BYTES])
def test_records_may_be_given_in_several_buffers(version: int, size: int) -> None:
    pieces = [bytes(size), bytearray(b"ab"), memoryview(b"c")]
    whole = b"".join(codec.encode_response(_fetched(b"".join(pieces)), version, 1))
    assert b"".join(codec.encode_response(_fetched(pieces), version, 1)) == whole


def test_decoded_records_are_a_view_of_the_frame() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(0, b"abc")])])
    frame = bytearray(codec.encode(request, 9))
    records = codec.decode(ProduceRequest, 9, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"abc")] = ord("z")
    assert records == b"zbc"


def test_tagged_fields_nobody_knows_are_kept_and_written_back() -> None:
    data = bytes.fromhex("02 61 02 62 02 05 02 abcd 8001 00")
    request = codec.decode(ApiVersionsRequest, 3, data)
    assert (request.client_software_name, request.client_software_version) == ("a", "b")
    assert request.unknown_tags == {5: b"\xab\xcd", 128: b""}
    assert codec.encode(request, 3) == data
    assert codec.encode(request, 2) == b""


def test_tagged_fields_are_written_in_the_order_of_their_tags() -> None:
    response = ApiVersionsResponse(finalized_features_epoch=7, zk_migration_ready=True, unknown_tags={9: b"x"})
    data = codec.encode(response, 3)
    assert data.endswith(bytes.fromhex("03  01 08 0000000000000007  03 01 01  09 01 78"))
    assert codec.decode(ApiVersionsResponse, 3, data) == response


def test_fields_that_a_version_lacks_are_dropped() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    assert codec.decode(MetadataRequest, 3, codec.encode(request, 3)) == MetadataRequest(topics=None)
    assert codec.decode(MetadataRequest, 4, codec.encode(request, 4)) == request


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (MetadataRequest(topics=None), 0),  # null topics begin with version 1
        (ProduceRequest(acks=1 << 15), 3),
        (ProduceRequest(timeout_ms=None), 3),  # type: ignore[arg-type]
        (ApiVersionsRequest(client_software_name="\ud800"), 3),
    ],
)
def test_a_value_that_the_version_cannot_carry_is_an_encode_error(request_: codec.Message, version: int) -> None:
    with pytest.raises(EncodeError, match="cannot carry this"):
        codec.encode(request_, version)


def test_a_version_nobody_defined_is_named_in_the_error() -> None:
    with pytest.raises(UnsupportedVersion, match="MetadataRequest has versions 0 to 13, not 14"):
        codec.encoder(MetadataRequest, 14)
    with pytest.raises(UnsupportedVersion, match="part of another message"):
        codec.decoder(PartitionProduceData, 0)
