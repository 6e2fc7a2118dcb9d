"""The worker processes of a run: started together, told to go together, watched, and gone when the run is over."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from chronik.bench.specs import AnySpec
from chronik.bench.tally import AnyReport, Failed, Progress, Ready, Tally

READY_DEADLINE_S = 60.0
GRACE_S = 90.0
"""How much longer than its spec says a worker may take: the wait for the last answers is in it."""

READ_BYTES = 1 << 20
TICK_S = 0.2


class WorkerFailed(Exception):
    """A worker could not do what it was told; the text says why."""


class _Member:
    def __init__(self, spec: AnySpec) -> None:
        self.spec = spec
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chronik.bench.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.ready = False
        self.progress = Progress()
        self.tally: Tally | None = None
        self.rest = b""

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()


class Fleet:
    """Use as a context: whatever happens, no worker outlives it."""

    def __init__(self, specs: Sequence[AnySpec]) -> None:
        self._members = [_Member(spec) for spec in specs]
        self._selector = selectors.DefaultSelector()
        for member in self._members:
            assert member.process.stdout is not None
            self._selector.register(member.process.stdout, selectors.EVENT_READ, member)
            member.say(msgspec.json.encode(member.spec))

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for member in self._members:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
        self._selector.close()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_DEADLINE_S
        while not all(member.ready for member in self._members):
            self._take_reports(TICK_S)
            if time.monotonic() > deadline:
                raise WorkerFailed(f"the load generators were not ready within {READY_DEADLINE_S:g} s")

    def run(self, on_tick: Callable[[Progress], None]) -> list[Tally]:
        """Start all workers and wait for what they measured, in the order of the specs."""
        self.wait_ready()
        longest_s = max(member.spec.warmup_s + member.spec.duration_s for member in self._members)
        for member in self._members:
            member.say(b"go")
        deadline = time.monotonic() + longest_s + GRACE_S
        while any(member.tally is None for member in self._members):
            self._take_reports(TICK_S)
            on_tick(
                Progress(
                    sum(member.progress.messages for member in self._members),
                    sum(member.progress.errors for member in self._members),
                )
            )
            if time.monotonic() > deadline:
                raise WorkerFailed(f"the load generators did not end within {longest_s + GRACE_S:g} s")
        return [member.tally for member in self._members if member.tally is not None]

    def _take_reports(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            member: _Member = key.data
            chunk = os.read(key.fd, READ_BYTES)
            if not chunk:
                self._selector.unregister(key.fileobj)
                if member.tally is None:
                    raise WorkerFailed(f"a load generator ended early, with code {member.process.wait()}")
                continue
            *lines, member.rest = (member.rest + chunk).split(b"\n")
            for line in lines:
                self._take(member, msgspec.json.decode(line, type=AnyReport))

    def _take(self, member: _Member, report: AnyReport) -> None:
        match report:
            case Ready():
                member.ready = True
            case Progress():
                member.progress = report
            case Tally():
                member.tally = report
            case Failed():
                raise WorkerFailed(report.reason)
