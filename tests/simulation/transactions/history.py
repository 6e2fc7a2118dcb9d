"""What producers did, what they were told, and the promises that must hold whatever happened in between.

1. A transaction whose commit was acknowledged is visible with everything it had acknowledged.
2. A transaction whose abort was acknowledged, or whose producer never asked to commit, is never visible.
3. A transaction is visible in all its partitions or in none.
4. Who reads committed data never sees anything that is not committed in the end.
5. When a newer instance has begun, nothing that an older one asks for from then on is granted.
6. When all is calm, every transaction is decided and readers reach the end of the log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chronik.protocol.records import read_records
from chronik.protocol.records.control import read_end_transaction_marker
from chronik.transactions.state import State

if TYPE_CHECKING:
    from simulation.transactions.model import TrueLog
    from simulation.transactions.world import World

Grant = tuple[int, int]
"""Producer id and epoch that an instance began with: the newest instance has the highest."""
IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Attempt:
    """One transaction of one instance."""

    transactional_id: str
    instance: int
    grant: Grant
    sent: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    asked: bool | None = None
    answered: bool = False


class History:
    """The book of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts: list[Attempt] = []
        self.owner: dict[int, Attempt] = {}
        self.newest: dict[str, Grant] = {}
        self.seen: set[int] = set()
        self._read_to: dict[tuple[str, int], int] = {}
        self.counts: Counter[str] = Counter()

    # what happens

    def begin(self, transactional_id: str, instance: int, grant: Grant) -> Attempt:
        attempt = Attempt(transactional_id, instance, grant)
        self.attempts.append(attempt)
        return attempt

    def began(self, transactional_id: str, grant: Grant) -> None:
        """An instance heard that it has begun."""
        self.counts["instances"] += 1
        self.newest[transactional_id] = max(self.newest.get(transactional_id, (-1, -1)), grant)

    def send(self, attempt: Attempt, value: int) -> None:
        attempt.sent.add(value)
        self.owner[value] = attempt

    def ended(self, attempt: Attempt, newest_when_asked: Grant) -> None:
        """An end was acknowledged; `newest_when_asked` is the newest instance that had begun when it was asked for."""
        attempt.answered = True
        self.counts["committed" if attempt.asked else "aborted"] += 1
        if newest_when_asked > attempt.grant:
            raise Violation(
                f"{attempt.transactional_id}: instance {attempt.instance}, which began with {attempt.grant}, ended a "
                f"transaction after another one had begun with {newest_when_asked}"
            )

    # reading

    def read(self) -> None:
        """A reader of committed data goes on, in every partition."""
        for log in self._world.data_logs():
            position, stable = self._read_to.get(log.place, 0), log.last_stable_offset
            for number, (batch, data) in enumerate(log.batches):
                new = not batch.is_control and position <= batch.base_offset < stable
                if new and self._fate(log, number) is not False:
                    self.seen.update(_values(data))
                    self.counts["read"] += 1
            self._read_to[log.place] = max(position, stable)

    @staticmethod
    def _fate(log: TrueLog, number: int) -> bool | None:
        """What the next marker of the producer says; None when there is none yet."""
        producer_id = log.batches[number][0].producer_id
        for batch, data in log.batches[number + 1 :]:
            if batch.producer_id == producer_id and batch.is_control:
                marker = read_end_transaction_marker(data)
                assert marker is not None
                return marker.committed
        return None

    # the end

    def check_calm(self) -> str | None:
        """What is still undecided (Promise 6)."""
        for log in self._world.data_logs():
            if log.producers.open or log.last_stable_offset != log.end:
                return f"{log.place} is stable to {log.last_stable_offset} of {log.end}"
        for node in self._world.nodes.values():
            if node.coordinator.shards.are_loading:
                return f"node {node.node_id} is loading"
            for txn in node.coordinator.transactions():
                if txn.state not in IDLE:
                    return f"{txn.transactional_id} is {txn.state.label}"
        return None

    def check(self) -> None:
        """Promises 1 to 4."""
        visible: Counter[int] = Counter()
        for log in self._world.data_logs():
            for number, (batch, data) in enumerate(log.batches):
                if not batch.is_control and self._fate(log, number):
                    visible.update(_values(data))
        for value, count in visible.items():
            if count > 1:
                raise Violation(f"value {value} is there {count} times")
        lost = self.seen - visible.keys()
        if lost:
            raise Violation(f"readers saw {sorted(lost)[:5]}, which is not committed")
        for attempt in self.attempts:
            self._check_attempt(attempt, {value for value in attempt.sent if value in visible})

    @staticmethod
    def _check_attempt(attempt: Attempt, shown: set[int]) -> None:
        who = f"a transaction of {attempt.transactional_id} (instance {attempt.instance})"
        if shown and attempt.asked is not True:
            raise Violation(f"{who} is visible, though its producer did not commit it: {sorted(shown)}")
        if attempt.asked and attempt.answered and not attempt.acknowledged <= shown:
            raise Violation(f"{who} was committed and lost {sorted(attempt.acknowledged - shown)}")
        if shown and not attempt.acknowledged <= shown:
            raise Violation(f"{who} is visible in part: {sorted(shown)} without {sorted(attempt.acknowledged - shown)}")


def _values(data: bytes) -> list[int]:
    return [int(record.value or b"0") for record in read_records(data)]
