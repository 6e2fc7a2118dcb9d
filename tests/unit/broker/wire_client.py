"""A raw socket client for broker tests: sends frames as given and reads frames as they come."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import TracebackType

DEADLINE_S = 5.0


class WireClient:
    """One TCP connection that speaks in length-prefixed frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> WireClient:
        return cls(*await asyncio.open_connection(*address))

    def send_frame(self, payload: bytes) -> None:
        self.writer.write(struct.pack(">i", len(payload)) + payload)

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def read_frame(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def closed_by_peer(self) -> bool:
        """Wait until the other side closes; anything it sends before that is dropped."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    async def __aenter__(self) -> WireClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def eventually(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds; fail with a sentence when it does not in time."""
    end = asyncio.get_running_loop().time() + deadline_s
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"waited {deadline_s} s in vain: {what}")
        await asyncio.sleep(0.002)
