"""A hundred groups of ten members each, by a client that speaks the protocol itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from chronik.protocol.api import response_class
from chronik.protocol.codec import decode_response, encode_request
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.coordinators import FindCoordinatorRequest
from chronik.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from chronik.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from chronik.protocol.wire import Message
from groups.reading import committed, make_topic
from harness.node_process import NodeProcess

MEMBERS = 10
BEATS = 10
ROUNDS_MAX = 60
REJOIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})


class Link:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._next = reader, writer, 0

    async def ask(self, request: Message, version: int) -> Any:
        self._next += 1
        self._writer.writelines(encode_request(request, version, self._next, "many"))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = memoryview(await self._reader.readexactly(size))
        correlation_id, answer = decode_response(response_class(type(request).API), version, frame)  # type: ignore[attr-defined]
        assert correlation_id == self._next
        return answer

    def close(self) -> None:
        self._writer.close()


class Member:
    def __init__(self, group: str, number: int, link: Link) -> None:
        self.group, self.number, self.link = group, number, link
        self.member_id, self.generation, self.share = "", -1, b""

    async def settle(self) -> None:
        """Joins until it has its part of a generation."""
        for _ in range(ROUNDS_MAX):
            joined = await self._join()
            if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            if joined.error_code:
                continue
            shares = [
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=str(position).encode())
                for position, member in enumerate(joined.members)
            ]
            request = SyncGroupRequest(
                group_id=self.group, generation_id=self.generation, member_id=self.member_id, assignments=shares
            )
            synced = await self.link.ask(request, 3)
            if not synced.error_code:
                self.share = synced.assignment
                return
        raise AssertionError(f"{self.group} did not settle for member {self.number}")

    async def _join(self) -> Any:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await self.link.ask(request, 5)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        return joined

    async def beat(self, number: int) -> ErrorCode:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        code = ErrorCode((await self.link.ask(request, 3)).error_code)
        if code:
            return code
        part = OffsetCommitRequestPartition(partition_index=self.number, committed_offset=number)
        answer = await self.link.ask(
            OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=self.generation,
                member_id=self.member_id,
                topics=[OffsetCommitRequestTopic(name="many", partitions=[part])],
            ),
            7,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)


async def live(group: str, port: int) -> None:
    """Ten members settle in one generation, each with a share of its own, and commit."""
    links = [Link(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(MEMBERS)]
    members = [Member(group, number, link) for number, link in enumerate(links)]
    unsettled = set(members)
    for _ in range(ROUNDS_MAX):
        await asyncio.gather(*(member.settle() for member in unsettled))
        codes = await asyncio.gather(*(member.beat(0) for member in members))
        unsettled = {member for member, code in zip(members, codes, strict=True) if code}
        assert all(code in REJOIN for code in codes if code), codes
        if not unsettled:
            break
    assert len({member.generation for member in members}) == 1
    assert sorted(member.share for member in members) == sorted(str(n).encode() for n in range(MEMBERS))
    for number in range(1, BEATS + 1):
        codes = await asyncio.gather(*(member.beat(number) for member in members))
        assert not any(codes), codes
    for link in links:
        link.close()


async def run(groups: int, node: NodeProcess) -> float:
    first = Link(*await asyncio.open_connection("127.0.0.1", node.kafka_port))
    await first.ask(FindCoordinatorRequest(key="many-0"), 2)
    first.close()
    started = time.monotonic()
    await asyncio.gather(*(live(f"many-{number}", node.kafka_port) for number in range(groups)))
    return time.monotonic() - started


@pytest.mark.parametrize("groups", [5, pytest.param(100, marks=pytest.mark.long)])
def test_many_groups_of_ten_members_settle_and_commit(node: NodeProcess, groups: int) -> None:
    with suppress(KafkaError):  # both sizes may run on one node
        make_topic(node.bootstrap, "many", MEMBERS)
    seconds = asyncio.run(asyncio.wait_for(run(groups, node), 100))
    print(f"{groups} groups of {MEMBERS}: {seconds:.1f} s, {groups * MEMBERS * BEATS / seconds:.0f} commits/s")
    for number in range(0, groups, 7):
        assert committed(node.bootstrap, f"many-{number}") == dict.fromkeys(range(MEMBERS), BEATS)
