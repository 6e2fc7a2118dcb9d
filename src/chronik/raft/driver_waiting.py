"""Who waits for what to be applied on this node: proposals by their index and term, reads by an index.

A proposal is never looked for by polling: it resolves when the entry at its own index is applied here, with the result
if the term is its own, and as superseded if it is not.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Sequence

from chronik.raft.driver_errors import OutcomeUnknown, ProposeError, Superseded
from chronik.raft.types import Entry


class Waiting:
    """All that waits for application. Lives on the event loop."""

    def __init__(self, results_kept_max: int) -> None:
        self._proposals: dict[int, tuple[int, asyncio.Future[object]]] = {}
        self._indexes: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = 0
        self._results_kept_max = results_kept_max
        self._results: OrderedDict[int, tuple[int, object]] = OrderedDict()
        self._keepers = 0
        self.applied = 0

    def __len__(self) -> int:
        return len(self._proposals)

    def proposal(self, index: int, term: int, future: asyncio.Future[object]) -> None:
        """Resolves `future` when the entry (`index`, `term`) is applied, or something else is in its place."""
        if index > self.applied:
            previous = self._proposals.get(index)
            if previous is not None:
                # This node led, lost the entry, and leads again: the old one may still be committed by another leader.
                self._fail(previous[1], OutcomeUnknown(f"entry {index} of term {previous[0]} was cut off: try again"))
            self._proposals[index] = (term, future)
            return
        kept = self._results.get(index)
        if kept is None:
            self._fail(
                future, OutcomeUnknown(f"entry {index} was applied here, but its result was not kept: try again")
            )
        else:
            self._resolve(index, term, future, *kept)

    def forget(self, index: int, future: asyncio.Future[object]) -> None:
        """Nobody waits for this one any more."""
        waiter = self._proposals.get(index)
        if waiter is not None and waiter[1] is future:
            del self._proposals[index]

    async def until_applied(self, index: int) -> None:
        """Returns when this node has applied through `index`."""
        if index > self.applied:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._order += 1
            heapq.heappush(self._indexes, (index, self._order, future))
            await future

    def keep_results(self) -> None:
        """A proposal is on its way whose place is not known: from now on keep results, until `release_results`."""
        self._keepers += 1

    def release_results(self) -> None:
        self._keepers -= 1
        if not self._keepers:
            self._results.clear()

    def entries_applied(self, entries: Sequence[Entry], results: Sequence[object]) -> None:
        """These were applied, in order, with these results."""
        proposals, keep = self._proposals, self._keepers > 0
        for entry, result in zip(entries, results, strict=True):
            if keep:
                self._results[entry.index] = (entry.term, result)
            waiter = proposals.pop(entry.index, None) if proposals else None
            if waiter is not None:
                self._resolve(entry.index, waiter[0], waiter[1], entry.term, result)
        while len(self._results) > self._results_kept_max:
            self._results.popitem(last=False)
        self._moved(entries[-1].index)

    def restored(self, index: int) -> None:
        """A snapshot through `index` took the place of the entries."""
        for waiting_index in [i for i in self._proposals if i <= index]:
            _, future = self._proposals.pop(waiting_index)
            self._fail(future, OutcomeUnknown(f"a snapshot took the place of entry {waiting_index}: try again"))
        self._moved(index)

    def fail_all(self, error: ProposeError) -> None:
        """Nothing more will be applied here."""
        proposals, self._proposals = self._proposals, {}
        indexes, self._indexes = self._indexes, []
        for _, future in proposals.values():
            self._fail(future, error)
        for _, _, waiter in indexes:
            if not waiter.done():
                waiter.set_exception(error)

    def _moved(self, index: int) -> None:
        self.applied = index
        while self._indexes and self._indexes[0][0] <= index:
            future = heapq.heappop(self._indexes)[2]
            if not future.done():
                future.set_result(None)

    def _resolve(
        self, index: int, term: int, future: asyncio.Future[object], applied_term: int, result: object
    ) -> None:
        if future.done():
            return
        if applied_term == term:
            future.set_result(result)
        else:
            self._fail(
                future, Superseded(f"entry {index} of term {term} lost to one of term {applied_term}: try again")
            )

    def _fail(self, future: asyncio.Future[object], error: ProposeError) -> None:
        if not future.done():
            future.set_exception(error)
