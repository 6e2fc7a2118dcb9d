"""Consensus nodes in one process, over real sockets and real files, for the tests of the driver."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from chronik.raft.driver import RaftDriver
from chronik.raft.driver_errors import NodeStopped
from chronik.raft.driver_settings import DriverSettings
from chronik.raft.files import FileSystem
from chronik.raft.storage import RaftStorage
from chronik.raft.transport import PeerTransport
from harness.ports import free_port

DEADLINE_S = 15.0
FAST = DriverSettings(tick_s=0.025, upkeep_s=0.1)


async def eventually(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Waits until the condition holds; fails with `what` after the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while not condition():  # noqa: ASYNC110 - any condition, without the code under test announcing it
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s} s: {what}") from None


class Ledger:
    """A state machine that remembers everything it was given, and insists on order."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.restored_at = 0
        self.before_apply: Callable[[Sequence[tuple[int, bytes]]], None] | None = None

    @property
    def datas(self) -> list[bytes]:
        return [data for _, data in self.entries]

    def apply(self, entries: Sequence[tuple[int, bytes]]) -> list[object]:
        if self.before_apply is not None:
            self.before_apply(entries)
        for index, data in entries:
            assert not self.entries or index > self.entries[-1][0], "applied twice, or out of order"
            self.entries.append((index, bytes(data)))
        return [(index, data) for index, data in entries]

    def snapshot(self) -> Callable[[], bytes]:
        captured = list(self.entries)
        return lambda: msgspec.msgpack.encode(captured)

    def restore(self, data: bytes) -> None:
        self.entries = msgspec.msgpack.decode(data, type=list[tuple[int, bytes]])
        self.restored_at = self.entries[-1][0]


class Node:
    """One node, which can be stopped, crashed, wiped and started again on the same folder and address."""

    def __init__(self, node_id: int, folder: Path, settings: DriverSettings, fs: FileSystem | None = None) -> None:
        self.node_id = node_id
        self.folder = folder
        self.port = free_port()
        self.settings = settings
        self.voters: dict[int, tuple[str, int]] = {}
        self.join: list[tuple[str, int]] = []
        self.join_as_voter = True
        self.fs = fs
        self.driver: RaftDriver
        self.ledger = Ledger()
        self.running = False
        self.leadership: list[tuple[bool, int]] = []

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def start(self) -> Node:
        self.ledger = Ledger()
        rng = random.Random(self.node_id)
        transport = PeerTransport(self.node_id, *self.address, rng=rng)
        self.driver = RaftDriver(
            self.node_id,
            RaftStorage(self.folder, self.fs),
            transport,
            self.ledger,
            voters=self.voters,
            join=self.join,
            join_as_voter=self.join_as_voter,
            settings=self.settings,
            rng=rng,
        )
        self.driver.on_leadership(lambda leads, term: self.leadership.append((leads, term)))
        await self.driver.start()
        self.running = True
        return self

    async def stop(self) -> None:
        if self.running:
            self.running = False
            await self.driver.stop()

    async def crash(self) -> None:
        """Gone without a word: nothing is handed over, nothing is written."""
        if self.running:
            self.running = False
            self.driver._end(NodeStopped("crashed"))
            self.driver._started = False
            await self.driver._transport.close()
            self.driver._log_worker.stop()
            self.driver._snapshot_worker.stop()

    def wipe(self) -> None:
        shutil.rmtree(self.folder)


class Cluster:
    """Nodes 1 to n, each a voter from the start."""

    def __init__(self, folder: Path, count: int, settings: DriverSettings = FAST) -> None:
        self.folder = folder
        self.settings = settings
        self.nodes = {node_id: self.new_node(node_id) for node_id in range(1, count + 1)}
        voters = {node.node_id: node.address for node in self.nodes.values()}
        for node in self.nodes.values():
            node.voters = voters

    def new_node(self, node_id: int) -> Node:
        return Node(node_id, self.folder / f"node-{node_id}", self.settings)

    def __getitem__(self, node_id: int) -> Node:
        return self.nodes[node_id]

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    async def start(self) -> Cluster:
        for node in self.nodes.values():
            await node.start()
        if len(self.nodes) == 1:
            await self.leader()
        return self

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.crash()

    async def leader(self, *, other_than: int = 0) -> Node:
        """The node that leads, once all running nodes agree on it."""

        def agreed() -> bool:
            leaders = {node.driver.leader_id for node in self.running}
            if len(leaders) != 1 or leaders & {0, other_than}:
                return False
            (leader_id,) = leaders
            return self.nodes[leader_id].running and self.nodes[leader_id].driver.is_leader

        await eventually(agreed, "a leader that all nodes know")
        return self.nodes[self.running[0].driver.leader_id]

    async def same(self, datas: list[bytes] | None = None) -> None:
        """Waits until all running nodes have applied the same."""

        def equal() -> bool:
            ledgers = [node.ledger.entries for node in self.running]
            return all(ledger == ledgers[0] for ledger in ledgers) and (
                datas is None or self.running[0].ledger.datas == datas
            )

        await eventually(equal, "all nodes applied the same")


def small_snapshots(entries: int = 50, retained: int = 5) -> DriverSettings:
    return msgspec.structs.replace(FAST, snapshot_entries=entries, retained_entries=retained)
