"""Where the image meets consensus: propose a change, read what is known, follow what changes.

The store is the state machine of the Raft group (`apply`, `snapshot`, `restore`) and the one way to write metadata
(`propose`). A proposal resolves with the result of its own application on this node, so whoever proposed reads his
write here. Who leads, how entries travel and what a deadline costs is the business of consensus, passed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

import structlog

from chronik.metadata import commands, snapshot
from chronik.metadata.delta import Delta
from chronik.metadata.image import MetadataImage, at_once
from chronik.metadata.model import Result
from chronik.protocol.errors import ErrorCode, KafkaError

PROPOSE_TIMEOUT_S = 5.0
TOUCHED_PER_NOTICE = 250  # topics that a run of commands touches before the listeners hear of it

log = structlog.get_logger()

Listener = Callable[[Delta], Iterator[None] | None]
"""One with much to do does it in slices, and returns what does them: the next command waits until they are done."""


class Consensus(Protocol):
    """What the store needs of the Raft driver."""

    async def propose(self, data: bytes, timeout_s: float) -> object: ...

    async def read_barrier(self, timeout_s: float) -> object: ...


class AppliedOutOfOrder(Exception):
    """An entry was handed over twice, or before its predecessors: the node must stop."""


class MetadataStore:
    """The image, its listeners, and the way to change it. Lives on the event loop."""

    def __init__(self, consensus: Consensus | None = None) -> None:
        self.image = MetadataImage()
        self._consensus = consensus
        self._listeners: list[Listener] = []
        self.followed_index = 0
        """Up to here every listener has followed the image: what this node no longer leads, it no longer acts for."""

    def attach(self, consensus: Consensus) -> None:
        """Gives the store its consensus, for those who must build the store first."""
        self._consensus = consensus

    async def propose(self, command: commands.Command, timeout_s: float = PROPOSE_TIMEOUT_S) -> Result:
        """Returns what applying the command on this node came to. Raises what consensus raises when it cannot be known
        within the deadline (see `as_kafka_error`), and KafkaError when the command must not be proposed at all."""
        if self._consensus is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "this node is still starting; try again")
        level = commands.required_level(command)
        if level > self.image.feature_level:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster is at feature level {self.image.feature_level}, this needs {level}; "
                "upgrade every node, then raise the level",
            )
        problem = commands.oversize(command)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        data = commands.encode(command)
        if len(data) > commands.MAX_ENTRY_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"the change takes {len(data)} bytes, at most {commands.MAX_ENTRY_BYTES} fit; make it in smaller steps",
            )
        result = await self._consensus.propose(data, timeout_s)
        if not isinstance(result, Result):
            raise TypeError(f"consensus answered a proposal with {type(result).__name__}, not with its result")
        return result

    async def read_barrier(self, timeout_s: float = PROPOSE_TIMEOUT_S) -> None:
        """Returns when this image holds everything that was acknowledged anywhere before the call."""
        if self._consensus is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "this node is still starting; try again")
        await self._consensus.read_barrier(timeout_s)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls the listener after every run of commands that changed something; returns how to stop that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    async def wait_until(self, condition: Callable[[MetadataImage], bool], timeout_s: float) -> bool:
        """Waits for the image to meet a condition; tells whether it did in time."""
        if condition(self.image):
            return True
        met = asyncio.get_running_loop().create_future()

        def check(delta: Delta) -> None:
            if not met.done() and condition(self.image):
                met.set_result(True)

        unsubscribe = self.subscribe(check)
        try:
            async with asyncio.timeout(timeout_s):
                await met
        except TimeoutError:
            return False
        finally:
            unsubscribe()
        return True

    # The state machine, called by the Raft driver (through `SlicedStore`).

    def apply(self, entries: Sequence[tuple[int, bytes]]) -> list[object]:
        """Applies committed entries in order and tells the listeners. Raises UnknownCommand, which is fatal: this
        version cannot know what the rest of the cluster knows."""
        return at_once(self.apply_in_slices(entries))

    def apply_in_slices(self, entries: Sequence[tuple[int, bytes]]) -> Generator[None, None, list[object]]:
        """The same, with pauses where there is much to do. What touches little has none."""
        delta = Delta()
        results: list[object] = []
        image = self.image
        failure: Exception | None = None
        try:
            for index, data in entries:
                if index <= image.applied_index:
                    raise AppliedOutOfOrder(f"entry {index} was handed over after entry {image.applied_index}")
                result = yield from image.apply_in_slices(commands.decode(data), index, delta)
                if not result.ok:
                    log.info("metadata command refused", index=index, error=result.error.name, reason=result.reason)
                results.append(result)
                delta.first_index = delta.first_index or index
                delta.last_index = index
                if len(delta.partitions_changed) + len(delta.topics_created) >= TOUCHED_PER_NOTICE:
                    yield
                    yield from self._notify(delta)
                    self.followed_index = index
                    delta = Delta()
                    yield
        except Exception as error:
            failure = error
        if delta:
            yield from self._notify(delta)
        self.followed_index = image.applied_index
        if failure is not None:
            raise failure
        return results

    def snapshot(self) -> Callable[[], bytes]:
        """Captures the image now; the callable returned encodes it, on a thread."""
        return snapshot.capture(self.image)

    def restore(self, data: bytes) -> None:
        """Replaces the image with a snapshot's."""
        at_once(self.restore_in_slices(data))

    def restore_in_slices(self, data: bytes) -> Generator[None, None, None]:
        """The same, with pauses; the image is replaced at once."""
        parsed = yield from snapshot.parse(data)
        delta = yield from snapshot.install(self.image, parsed)
        delta.first_index = delta.last_index = self.image.applied_index
        yield
        yield from self._notify(delta)
        self.followed_index = self.image.applied_index

    def _notify(self, delta: Delta) -> Generator[None, None, None]:
        for listener in tuple(self._listeners):
            try:
                slices = listener(delta)
                if slices is not None:
                    yield from slices
            except Exception:
                # One follower's mistake must not keep the others, or the proposer, from what was committed.
                log.exception("a follower of the metadata failed", listener=repr(listener))


class SlicedStore:
    """The store as consensus drives it: what takes long is done in slices, and the event loop has its turns between."""

    def __init__(self, store: MetadataStore) -> None:
        self.apply = store.apply_in_slices
        self.snapshot = store.snapshot
        self.restore = store.restore_in_slices


def as_kafka_error(error: Exception) -> KafkaError:
    """What a client is told when a proposal's outcome is not known, or there was nobody to propose to: an error it
    retries, that names the cause."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, TimeoutError):
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, str(error) or "the change was not agreed upon in time; try again"
        )
    if getattr(error, "retriable", False):
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{error}; try again")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the change could not be made: {error}")
