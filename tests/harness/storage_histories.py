"""Random histories of partition logs on a simulated disk, checked against what storage promises.

A history appends, syncs, rolls, truncates, checkpoints, and loses power; settings and chances differ per seed (a swarm
finds more than one average mix). After every restart:

1. everything that counted as synced is there;
2. what is there is exactly what was appended, in order, from the start of the log, nothing twice;
3. a producer's retry of a batch that is there is answered as a duplicate, and its next batch is accepted;
4. the high watermark is not beyond the end, and not below the one last written down.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.records import Record, build_batch
from chronik.storage import LogConfig, LogManager, PartitionLog
from chronik.storage.manager import Threads
from harness.simulated_disk import InlineExecutor, PowerCut, SimulatedDisk, SteppedExecutor
from harness.storage_logs import QUIET, TOPIC_ID, abandon, read_all

PRODUCER_EPOCH = 0
NOW_MS = 1_700_000_000_000


class Violation(AssertionError):
    """Storage broke a promise."""


@dataclass
class Expected:
    """What one log must hold."""

    batches: list[tuple[int, list[bytes], int, int]] = field(default_factory=list)
    """(base offset, values, producer id, sequence) of everything appended and not truncated."""
    acknowledged: int = 0
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    truncated: list[list[tuple[int, list[bytes], int, int]]] = field(default_factory=list)
    """The batches before each truncation that is not synced yet: a crash may bring them back."""

    def values(self) -> list[tuple[int, bytes]]:
        return [(base + i, value) for base, values, _, _ in self.batches for i, value in enumerate(values)]

    def cut(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch[0] + len(batch[1]) <= end]
        self.sequences = {}
        for _, values, producer, sequence in self.batches:
            if producer >= 0:
                self.sequences[producer] = sequence + len(values)


class History:
    """One seeded run."""

    def __init__(self, seed: int, *, overwriting: bool = False) -> None:
        """`overwriting` histories truncate much, and have batches of one sector: what truncation leaves fits in."""
        self.dice = random.Random(seed)
        dice = self.dice
        self.disk = SimulatedDisk(seed)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.disk.can_sync_everything = dice.random() < 0.5
        self.config = LogConfig(
            durability="fsync",
            segment_bytes=dice.choice((2500, 6000, 20_000)),
            index_interval_bytes=dice.choice((1, 200, 4096)),
        )
        self.names = [("t", number) for number in range(dice.choice((1, 2, 5)))]
        self.expected = {name: Expected() for name in self.names}
        self.weights = {
            "append": 10,
            "sync": dice.choice((1, 5, 10)),
            "checkpoint": dice.choice((0, 1, 3)),
            "watermark": dice.choice((0, 1)),
            "truncate": dice.choice((0, 0, 1, 4)),
            "roll": dice.choice((0, 1)),
            "lose_power": dice.choice((0.3, 1)),
            "cut_inside": dice.choice((0, 0.5, 1)),
            "kill": dice.choice((0, 0.3)),
            "stop": dice.choice((0, 0.3)),
        }
        # Batches of one size, best of a sector, lie at the same places before and after a truncation.
        self.sizes = dice.choice(((0, 50, 700), (0, 50, 700), (435,)))
        self.counts = dice.choice(((1, 1, 3), (1,)))
        if overwriting:
            self.sizes, self.counts = (435,), (1,)
            self.weights.update(truncate=5, sync=3, lose_power=1, cut_inside=0, checkpoint=0)
        self.executor = SteppedExecutor()
        self.manager: LogManager | None = None
        self.next_value = 0

    def run(self, steps: int) -> None:
        asyncio.run(self._run(steps))

    async def _run(self, steps: int) -> None:
        await self._start()
        actions = list(self.weights)
        weights = list(self.weights.values())
        try:
            for _ in range(steps):
                action = self.dice.choices(actions, weights)[0]
                try:
                    await getattr(self, f"_do_{action}")()
                    await asyncio.sleep(0)
                    self._note_acknowledged()
                except PowerCut:
                    await self._power_is_off()
            await self._power_is_off()
        finally:
            await self._abandon()

    # --- life of the process -------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self.executor = SteppedExecutor()
        inline = InlineExecutor()
        self.manager = LogManager(
            "/data",
            self.disk,
            clock=lambda: NOW_MS / 1000,
            default_config=self.config,
            housekeeping=QUIET,
            threads=Threads(self.executor, inline, inline),
        )
        await self.manager.start()
        for topic, partition in self.names:
            self.manager.create(topic, partition, TOPIC_ID, self.config)

    async def _abandon(self) -> None:
        """The process dies: nothing is closed."""
        assert self.manager is not None
        await abandon(self.manager)
        self.executor.jobs.clear()

    async def _power_is_off(self) -> None:
        await self._abandon()
        self.disk.power_cut()
        await self._start_again()

    async def _start_again(self) -> None:
        if self.dice.random() < 0.2:
            # Once more in the middle of the recovery, or soon after it.
            self.disk.cut_at = self.disk.operations + self.dice.randint(1, 20)
            try:
                await self._start()
                await self._abandon()
            except PowerCut:
                pass
            self.disk.power_cut()
        await self._start()
        await self._check()

    # --- actions -------------------------------------------------------------------------------------------------

    def _pick(self) -> tuple[PartitionLog, Expected]:
        assert self.manager is not None
        name = self.dice.choice(self.names)
        log = self.manager.get(*name)
        assert log is not None
        return log, self.expected[name]

    async def _do_append(self) -> None:
        log, expected = self._pick()
        if self.dice.random() < 0.1:
            expected.epoch += 1
        values = []
        for _ in range(self.dice.choice(self.counts)):
            self.next_value += 1
            values.append(b"%06d." % self.next_value + b"v" * self.dice.choice(self.sizes))
        producer = self.dice.choice((-1, -1, 1, 2))
        sequence = expected.sequences.get(producer, 0) if producer >= 0 else -1
        base = log.end_offset
        # Known before it is written: after a power cut in the middle it may be there or not.
        expected.batches.append((base, values, producer, sequence))
        info = log.append(
            build(values, producer, sequence), leader_epoch=max(expected.epoch, log.latest_epoch), now_ms=NOW_MS
        )
        if info.base_offset != base or info.duplicate:
            raise Violation(f"appended at {info.base_offset}, expected {base}")
        if producer >= 0:
            expected.sequences[producer] = sequence + len(values)

    async def _do_sync(self) -> None:
        await asyncio.sleep(0)
        self.executor.step()

    async def _drain(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
            if not self.executor.step():
                return

    async def _do_checkpoint(self) -> None:
        assert self.manager is not None
        await self._drain()
        await self.manager._checkpointer.run()

    async def _do_watermark(self) -> None:
        log, _ = self._pick()
        log.set_high_watermark(log.synced_offset)

    async def _do_truncate(self) -> None:
        log, expected = self._pick()
        if not expected.batches:
            return
        # What is cut was never acknowledged to anyone: replication truncates only what lies beyond that.
        end = self.dice.choice(expected.batches)[0]
        expected.acknowledged = min(expected.acknowledged, end)
        expected.truncated.append(list(expected.batches))
        expected.cut(end)
        log.truncate_to(end)
        # A follower truncates because a new leader took over, in a new epoch.
        expected.epoch = max(expected.epoch, log.latest_epoch) + 1
        for _ in range(self.dice.choice((0, 1))):
            await self._do_append()

    async def _do_roll(self) -> None:
        log, _ = self._pick()
        if log.segments and log.segments[-1].size:
            log.roll()

    async def _do_lose_power(self) -> None:
        await self._power_is_off()

    async def _do_cut_inside(self) -> None:
        self.disk.cut_at = self.disk.operations + self.dice.randint(1, 30)

    async def _do_kill(self) -> None:
        await self._abandon()
        await self._start_again()

    async def _do_stop(self) -> None:
        assert self.manager is not None
        await self._drain()  # a clean stop waits for the syncs
        await self.manager.close()
        self._note_acknowledged()
        await self._abandon()
        if self.dice.random() < 0.5:
            self.disk.power_cut()
        await self._start_again()

    def _note_acknowledged(self) -> None:
        assert self.manager is not None
        for name, expected in self.expected.items():
            log = self.manager.get(*name)
            assert log is not None
            if log.failure is not None:
                raise Violation(f"{log} has stopped: {log.failure}")
            expected.acknowledged = max(expected.acknowledged, log.synced_offset)
            if not log._dirty and log._sync_state == 0:
                expected.truncated.clear()

    # --- checks --------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        assert self.manager is not None
        for name, expected in self.expected.items():
            log = self.manager.get(*name)
            assert log is not None
            if log.failure is not None:
                raise Violation(f"{log} has stopped: {log.failure}")
            found = await read_all(log)
            wanted = expected.values()
            while found != wanted[: len(found)] and expected.truncated:
                expected.batches = expected.truncated.pop()
                wanted = expected.values()
            expected.truncated.clear()
            if log.end_offset < expected.acknowledged:
                raise Violation(f"{log} lost acknowledged records below {expected.acknowledged}")
            if found != wanted[: len(found)] or len(found) != log.end_offset:
                raise Violation(f"{log} holds {found[-3:]} of {len(found)}, expected {wanted[-3:]} of {len(wanted)}")
            if log.high_watermark > log.end_offset:
                raise Violation(f"the high watermark of {log} is {log.high_watermark}")
            expected.cut(log.end_offset)
            self._check_producers(log, expected)

    def _check_producers(self, log: PartitionLog, expected: Expected) -> None:
        last: dict[int, tuple[int, list[bytes], int, int]] = {}
        for batch in expected.batches:
            last[batch[2]] = batch
        for producer, (base, values, _, sequence) in last.items():
            if producer < 0:
                continue
            info = log.append(build(values, producer, sequence), leader_epoch=log.latest_epoch, now_ms=NOW_MS)
            if not info.duplicate or info.base_offset != base:
                raise Violation(f"{log} appended a batch of producer {producer} twice")
            try:
                log.append(build(values, producer, sequence + 1000), leader_epoch=log.latest_epoch, now_ms=NOW_MS)
            except KafkaError as refused:
                if refused.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise Violation(f"a gap was refused with {refused}") from refused
            else:
                raise Violation(f"{log} accepted a gap in the sequence of producer {producer}")


def build(values: list[bytes], producer: int, sequence: int) -> bytearray:
    return build_batch(
        [Record(number, NOW_MS, None, value) for number, value in enumerate(values)],
        producer_id=producer,
        producer_epoch=PRODUCER_EPOCH if producer >= 0 else -1,
        base_sequence=sequence,
    )
