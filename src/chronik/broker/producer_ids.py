"""Producer ids: taken from metadata in blocks, handed out one by one.

What lives here: the block of this node and its refill. What does not: transactional ids, which keep their producer id
in the transaction coordinator (it may use this source for new ones).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from chronik.metadata.commands import AllocateProducerIds

if TYPE_CHECKING:
    from chronik.metadata.store import MetadataStore

BLOCK_SIZE = 1000


class ProducerIds:
    """Unique producer ids; only every thousandth costs a metadata command."""

    def __init__(self, node_id: int, store: MetadataStore) -> None:
        self._node_id = node_id
        self._store = store
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    def take_nowait(self) -> int | None:
        """The next id of the block, or None when the block is used up."""
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1

    async def take(self) -> int:
        """The next id; asks for a new block when needed. Raises what `store.propose` raises."""
        while True:
            taken = self.take_nowait()
            if taken is not None:
                return taken
            async with self._refill:
                if self._next >= self._end:
                    result = await self._store.propose(AllocateProducerIds(self._node_id, BLOCK_SIZE))
                    result.raise_for_error()
                    first, count = cast(tuple[int, int], result.value)
                    self._next, self._end = first, first + count
