"""Which leader epoch began at which offset: the cache behind OffsetForLeaderEpoch and its checkpoint file.

Every batch carries the epoch it was appended in, so the cache can be rebuilt from the log; the file
`leader-epoch-checkpoint` (Kafka's format, in `checkpoints`) saves that work.
"""

from __future__ import annotations

from bisect import bisect_right

NO_EPOCH = -1
NO_OFFSET = -1


class EpochCache:
    """(epoch, start offset) pairs, both ascending."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries or ():
            self.assign(epoch, start)

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def copy(self) -> EpochCache:
        return EpochCache(self.entries())

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """An epoch begins at an offset. An entry that never got a record gives way. False when nothing changed."""
        if epoch < 0 or (self._epochs and epoch <= self._epochs[-1]):
            return False
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest known epoch not above `epoch`, where it ended), as Kafka answers OffsetForLeaderEpoch.

        (−1, −1) when the epoch is unknown: newer than all, or none is known.
        """
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            # Older than everything here: those records are gone, so its end is where the first known one began.
            return epoch, self._starts[0]
        return self._epochs[at - 1], self._starts[at]

    def at(self, offset: int) -> int:
        """The epoch that an offset belongs to, or −1."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """The log ends at `end_offset` now: drop epochs that begin there or later. True when something changed."""
        size = len(self._starts)
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
        return len(self._starts) != size

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log begins at `start_offset` now: older epochs go, the one in force there begins there."""
        index = bisect_right(self._starts, start_offset)
        if index == 0 or (index == 1 and self._starts[0] == start_offset):
            return False
        del self._epochs[: index - 1]
        del self._starts[: index - 1]
        self._starts[0] = start_offset
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
