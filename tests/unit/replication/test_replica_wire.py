"""The bytes that followers and leaders exchange."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.replication.wire import (
    Added,
    FetchRequest,
    FetchResponse,
    MalformedFetch,
    PartitionResult,
    Progress,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)


def test_a_request_is_read_as_it_was_written() -> None:
    request = FetchRequest(
        7, 3, 42, added=[Added(1, b"t" * 16, 2, 5, 100, 90, 4, 10)], progress=[Progress(2, 8, 7)], removed=[9]
    )
    assert decode_request(encode_request(request)) == request


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_an_answer_carries_the_records_of_each_partition_without_a_copy(records: list[bytes]) -> None:
    response = FetchResponse(results=[PartitionResult(slot, size=len(data)) for slot, data in enumerate(records)])
    payload = b"".join(encode_response(response, [data for data in records if data]))
    found, views = decode_response(payload)
    assert found == response
    assert [bytes(view) for view in views] == records
    assert all(view.obj is payload for view in views)


@pytest.mark.parametrize("payload", [b"", b"\x00\x00", b"\x00\x00\x00\x09\x90", b"\x00\x00\x00\x01\xc1"])
def test_an_answer_that_cannot_be_read_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedFetch):
        decode_response(payload)


def test_an_answer_with_more_or_fewer_bytes_than_it_speaks_of_is_refused() -> None:
    head = FetchResponse(results=[PartitionResult(1, size=5)])
    for records in ([b"four"], [b"sixsix"]):
        with pytest.raises(MalformedFetch):
            decode_response(b"".join(encode_response(head, list(records))))


def test_a_request_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(MalformedFetch):
        decode_request(b"\xc1")
