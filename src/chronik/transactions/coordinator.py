"""The transaction coordinator of a node: which transactional ids it answers for, and what producers ask of it.

It answers for the ids that belong to the partitions of `__transaction_state` that this node leads: a shard each, loaded
when leadership comes and closed when it goes. The rules are in `state`; here they meet the log, time and other nodes.

A request that meets a transaction which is still being completed waits a moment for that before it is told
CONCURRENT_TRANSACTIONS: most are done within it, and clients are slow to come back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import structlog

from chronik.cluster.internal_topics import TRANSACTIONS_TOPIC
from chronik.coordination.led_shards import LedShards
from chronik.coordination.loader import Status
from chronik.coordination.timers import SteadyClock, Timers
from chronik.coordination.topic_access import InternalTopicAccess
from chronik.metadata.store import as_kafka_error
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.transactions import state
from chronik.transactions.marker_delivery import MarkerDelivery, Peers
from chronik.transactions.marker_writer import MarkerWriter, OffsetsMarker
from chronik.transactions.membership import Membership
from chronik.transactions.shard import Slot, TransactionShard
from chronik.transactions.state import NeedsProducerId, Place, State, Transaction

if TYPE_CHECKING:
    from chronik.metadata.configs import ConfigView
    from chronik.metadata.model import BrokerInfo
    from chronik.metadata.store import MetadataStore
    from chronik.replication.manager import ReplicaManager
    from chronik.replication.partition import Partition

log = structlog.get_logger()

CONCURRENT_WAIT_S = 0.25
"""So long a request waits for the transaction before its own to be completed."""
WRITE_SWEEP_MS = 1000
COMPLETE_PAUSE_S = 0.05
COMPLETE_PAUSE_MAX_S = 1.0

Decision = Callable[[Transaction, int | None], Transaction]
"""From what is, and a new producer id if one was asked for, to what shall be. May raise what `state` raises."""


class TransactionCoordinator:
    """All transactional ids that this node coordinates, and this node's part in the transactions of others."""

    def __init__(
        self,
        node_id: int,
        store: MetadataStore,
        replicas: ReplicaManager,
        configs: ConfigView,
        peers: Peers,
        *,
        new_producer_id: Callable[[], Awaitable[int]],
        offsets_marker: OffsetsMarker,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self.clock_ms: Callable[[], int] = clock_ms if clock_ms is not None else SteadyClock()
        self.topic = InternalTopicAccess(store, configs, TRANSACTIONS_TOPIC)
        self.markers = MarkerWriter(replicas, self.clock_ms, offsets_marker)
        self.delivery = MarkerDelivery(node_id, store, peers, self.markers)
        self.membership = Membership(node_id, self, peers)
        self._replicas = replicas
        self._new_producer_id = new_producer_id
        self._max_timeout_ms = configs.broker_int("transaction.max.timeout.ms")
        self._abort_interval_ms = configs.broker_int("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._expiration_ms = configs.broker_int("transactional.id.expiration.ms")
        self._expiry_interval_ms = configs.broker_int("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._timers = Timers(self.clock_ms)
        self.shards = LedShards(self.topic, self._new_shard, self._close)
        self._completions: dict[asyncio.Task[None], TransactionShard] = {}

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follows leadership from now on."""
        self._replicas.on_leadership(self.shards.leadership)
        now_ms = self.clock_ms()
        self._timers.schedule(now_ms + WRITE_SWEEP_MS, self._sweep_writes)
        self._timers.schedule(now_ms + self._abort_interval_ms, self._sweep_overdue)
        self._timers.schedule(now_ms + self._expiry_interval_ms, self._sweep_unused)

    def stop(self) -> None:
        """Whoever waits is told that this node no longer coordinates."""
        self._timers.close()
        self.shards.close()

    def _new_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(partition, self.clock_ms, self._prepared)

    def _close(self, shard: TransactionShard) -> None:
        shard.close()
        for task, owner in list(self._completions.items()):
            if owner is shard:
                task.cancel()

    def _sweep_writes(self) -> None:
        now_ms = self.clock_ms()
        self.shards.expire_writes(now_ms)
        self._timers.schedule(now_ms + WRITE_SWEEP_MS, self._sweep_writes)

    def _sweep_overdue(self) -> None:
        now_ms = self.clock_ms()
        for shard in self.active():
            for slot in list(shard.slots()):
                if not slot.pending and state.is_overdue(slot.current, now_ms):
                    log.info(
                        "a transaction is older than its timeout and is aborted",
                        transactional_id=slot.current.transactional_id,
                        producer_id=slot.current.producer_id,
                        timeout_ms=slot.current.timeout_ms,
                    )
                    shard.change(slot, state.fence(slot.current, now_ms))
        self._timers.schedule(now_ms + self._abort_interval_ms, self._sweep_overdue)

    def _sweep_unused(self) -> None:
        now_ms = self.clock_ms()
        for shard in self.active():
            for slot in list(shard.slots()):
                if not slot.pending and state.is_forgettable(slot.current, self._expiration_ms, now_ms):
                    shard.forget(slot)
            shard.forget_unwritten()
        self._timers.schedule(now_ms + self._expiry_interval_ms, self._sweep_unused)

    # --- who coordinates what ------------------------------------------------------------------------------------

    def active(self) -> Iterator[TransactionShard]:
        """The shards that answer for their ids."""
        return self.shards.active()

    def shard_of(self, transactional_id: str) -> TransactionShard:
        """Raises KafkaError when this node does not, or not yet, coordinate the id."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        return self.shards.of(transactional_id, transactional_id)

    def coordinator_of(self, key: str) -> BrokerInfo | None:
        """The broker that coordinates an id, if that is known and it is alive."""
        return self.topic.leader_of(key)

    async def find_coordinator(self, key: str) -> BrokerInfo | None:
        """The same, after creating the internal topic if need be; None when it has no leader now."""
        await self.topic.ensure()
        return await self.topic.wait_for_leader(key)

    # --- what producers ask --------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """A producer begins: its producer id and epoch. Raises KafkaError."""
        if not 0 < timeout_ms <= self._max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms must be from 1 to {self._max_timeout_ms} (transaction.max.timeout.ms of the "
                f"broker), not {timeout_ms}",
            )
        shard = self.shard_of(transactional_id)
        if shard.get(transactional_id) is None:
            producer_id = await self._fresh_producer_id()
            shard = self.shard_of(transactional_id)
            shard.open(transactional_id, producer_id)

        def decide(txn: Transaction, spare: int | None) -> Transaction:
            return state.init_producer(txn, expected, timeout_ms, spare, self.clock_ms())

        done = await self._change(transactional_id, decide)
        if done.state is State.EMPTY:
            return done.told
        # The open transaction is aborted; what was asked for comes after that.
        return (await self._change(transactional_id, decide)).told

    async def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, places: Iterable[Place], client_version: int
    ) -> None:
        """Partitions join the transaction of a producer. Raises KafkaError."""
        joining = frozenset(places)
        await self._change(
            transactional_id,
            lambda txn, _: state.add_partitions(txn, producer_id, epoch, joining, client_version, self.clock_ms()),
        )

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, places: Iterable[Place]
    ) -> dict[Place, ErrorCode]:
        """Whether partitions are in the open transaction. Raises KafkaError. Never waits: what was being completed when
        the question came is not the transaction it is about."""
        found: dict[Place, ErrorCode] = {}

        def decide(txn: Transaction, _: int | None) -> Transaction:
            found.update(state.verify_partitions(txn, producer_id, epoch, places))
            return txn

        await self._change(transactional_id, decide, wait_s=0.0)
        return found

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, client_version: int
    ) -> tuple[int, int]:
        """The decision is taken when this returns, and will be carried out; the producer id and epoch to go on with."""
        done = await self._change(
            transactional_id,
            lambda txn, spare: state.end(txn, producer_id, epoch, commit, client_version, spare, self.clock_ms()),
        )
        return done.told

    async def _change(
        self, transactional_id: str, decide: Decision, *, wait_s: float = CONCURRENT_WAIT_S
    ) -> Transaction:
        """Writes what `decide` makes of the id, once nothing else is under way. Raises KafkaError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        spare: int | None = None
        while True:
            shard = self.shard_of(transactional_id)
            slot = shard.get(transactional_id)
            if slot is None:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                    f"transactional id {transactional_id} is not known; begin with InitProducerId",
                )
            try:
                if slot.pending:
                    raise state.concurrent(slot.current)
                wanted = decide(slot.current, spare)
            except NeedsProducerId:
                spare = await self._fresh_producer_id()
            except KafkaError as error:
                left = deadline - loop.time()
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or left <= 0:
                    raise
                await slot.changed(left)
            else:
                break
        if wanted is slot.current:
            return wanted
        code = await shard.change(slot, wanted)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"the state of {transactional_id} could not be written; try again")
        return wanted

    async def _fresh_producer_id(self) -> int:
        try:
            return await self._new_producer_id()
        except Exception as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, as_kafka_error(error).message) from error

    # --- carrying out decisions ----------------------------------------------------------------------------------

    def _prepared(self, shard: TransactionShard, slot: Slot) -> None:
        task = asyncio.get_running_loop().create_task(self._complete(shard, slot))
        self._completions[task] = shard
        task.add_done_callback(self._completed)

    def _completed(self, task: asyncio.Task[None]) -> None:
        self._completions.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a transaction cannot be completed; the next coordinator will try", exc_info=error)

    async def _complete(self, shard: TransactionShard, slot: Slot) -> None:
        """Markers to everybody, then the last word in the log."""
        decided = slot.current
        await self.delivery.deliver(decided, lambda: shard.partition.leader_epoch)
        pause = COMPLETE_PAUSE_S
        while slot.current is decided and shard.status is Status.ACTIVE:
            if not slot.pending:
                await shard.change(slot, state.complete(decided, self.clock_ms()))
            if slot.current is decided:
                await slot.changed(pause)
                pause = min(pause * 2, COMPLETE_PAUSE_MAX_S)

    # --- what people ask -----------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """Raises KafkaError when the id is not known, or not coordinated here."""
        slot = self.shard_of(transactional_id).get(transactional_id)
        if slot is None or not slot.is_written:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                f"there is no transactional id {transactional_id}; check the name",
            )
        return slot.current

    def transactions(self) -> Iterator[Transaction]:
        """All that this node coordinates."""
        for shard in self.active():
            for slot in shard.slots():
                yield slot.current

    def counts(self) -> Counter[State]:
        """How many ids are in which state."""
        return Counter(txn.state for txn in self.transactions())
