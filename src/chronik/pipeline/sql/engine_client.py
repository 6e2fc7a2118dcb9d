"""Finding, starting and asking the engine of `chronik sql`. Imports no Spark, so that a warm answer is a quick one."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from chronik.client.errors import ClientError
from chronik.pipeline.sql.process_identity import UNKNOWN, identity_of

STATE = "engine.json"
FAILURE = "failure.txt"
"""Why the engine could not be started, in words for the one who waits for it."""

MAX_QUERY_BYTES = 1024 * 1024
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 20.0
_CONNECT_S = 5.0
_POLL_S = 0.05
_LOG_TAIL_LINES = 15


class Wanted(msgspec.Struct, frozen=True):
    """What an engine works on. Callers that want the same share one."""

    bootstrap: str
    warehouse: str
    master: str


class EngineState(msgspec.Struct, frozen=True):
    """How to reach a running engine; kept in a file that only its owner can read."""

    pid: int
    port: int
    connect_port: int
    token: str
    identity: str = UNKNOWN
    """Tells the process from another that is given its number once it has ended."""

    def alive(self) -> bool:
        """Whether the process is there; one that is known to be another is not."""
        found = identity_of(self.pid)
        return found is not None and (UNKNOWN in (found, self.identity) or found == self.identity)

    def certain(self) -> bool:
        """Whether the process is there and beyond doubt the engine, so that it may be sent a signal."""
        return self.identity != UNKNOWN and identity_of(self.pid) == self.identity


class Query(msgspec.Struct):
    token: str
    sql: str = ""
    stop: bool = False


class SqlError(ClientError):
    """A query failed; the text says why and where."""


class EngineMissing(ClientError):
    """The engine could not be started, or went away."""


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str


class Piece(msgspec.Struct):
    """A line of an answer."""

    columns: list[Column] | None = None
    warnings: list[str] = []
    rows: list[list[Any]] = []
    end: bool = False
    seconds: float = 0.0
    error: str | None = None


class Answer(msgspec.Struct):
    """A whole answer: its columns first, rows as they come. It is closed when no more are wanted: the query ends."""

    columns: list[Column]
    warnings: list[str]
    rows: Iterator[list[Any]]
    pieces: Generator[Piece]

    def close(self) -> None:
        self.pieces.close()


def engines_folder() -> Path:
    chosen = os.environ.get("CHRONIK_ENGINES")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "chronik" / "engines"


class EngineClient:
    """The engine for one cluster, warehouse and master."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        key = hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()[:16]
        self.folder = engines_folder() / key

    def state(self) -> EngineState | None:
        """How to reach the engine, if one is there and alive."""
        try:
            state = msgspec.json.decode((self.folder / STATE).read_bytes(), type=EngineState)
        except (OSError, msgspec.DecodeError):
            return None
        return state if state.alive() else None

    def start(self) -> EngineState:
        """Start the engine, detached from this terminal, and wait until it answers."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
            (self.folder / FAILURE).unlink(missing_ok=True)
            (self.folder / "wanted.json").write_bytes(msgspec.json.encode(self.wanted))
        except OSError as error:
            raise EngineMissing(
                f"the engine of SQL needs a folder of its own: {error}. Set CHRONIK_ENGINES to one that can be written"
            ) from error
        log_path = self.folder / "engine.log"
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "chronik.pipeline.sql.engine", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            state = self.state()
            if state is not None:
                return state
            if process.poll() not in (None, 0):
                raise EngineMissing(f"Spark could not be started: {self._why(log_path)}")
            time.sleep(_POLL_S)
        raise EngineMissing(f"Spark was not ready within {START_DEADLINE_S:g} s; see {log_path}")

    def _why(self, log_path: Path) -> str:
        with suppress(OSError):
            return f"{(self.folder / FAILURE).read_text()}\nMore is in the log {log_path}"
        tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        return f"the log {log_path} ends with:\n{tail}"

    def query(self, sql: str) -> Answer:
        """Ask the engine, starting it if need be. SqlError when the query is wrong."""
        if len(sql.encode()) > MAX_QUERY_BYTES // 2:
            raise SqlError(f"the query is longer than {MAX_QUERY_BYTES // 2} bytes")
        try:
            first, pieces = self._begin(sql)
        except EngineMissing:  # it ended, for nobody had asked it anything, just before it was asked
            first, pieces = self._begin(sql)
        if first.error is not None:
            raise SqlError(first.error)
        return Answer(first.columns or [], first.warnings, _rows(first, pieces), pieces)

    def _begin(self, sql: str) -> tuple[Piece, Generator[Piece]]:
        state = self.state() or self.start()
        pieces = self._ask(state, Query(state.token, sql))
        try:
            return next(pieces), pieces
        except StopIteration:
            log = self.folder / "engine.log"
            raise EngineMissing(f"the engine went away before it answered; its log is {log}") from None
        except ConnectionRefusedError as error:
            (self.folder / STATE).unlink(missing_ok=True)  # left by one that was killed
            raise EngineMissing(f"the engine (process {state.pid}) cannot be reached: {error}; ask again") from error
        except TimeoutError as error:
            raise EngineMissing(
                f"the engine (process {state.pid}) does not answer. End it with: chronik sql --stop, then ask again"
            ) from error

    def stop(self) -> bool:
        """End the engine; whether there was one."""
        state = self.state()
        if state is None:
            return False
        try:
            told = list(self._ask(state, Query(state.token, stop=True), STOP_DEADLINE_S))
            refused = told[0].error if told else "it hung up"
        except (OSError, EngineMissing) as error:
            refused = str(error)
        if refused is not None and not self._signalled(state, refused):
            return False
        deadline = time.monotonic() + STOP_DEADLINE_S
        while time.monotonic() < deadline:
            if not state.alive():
                return True
            time.sleep(_POLL_S)
        raise EngineMissing(f"the engine did not end within {STOP_DEADLINE_S:g} s. End it with: kill -9 {state.pid}")

    def _signalled(self, state: EngineState, why: str) -> bool:
        """Tell an engine that does not answer to end; False when it is gone. What may be another is left alone."""
        if state.certain():
            with suppress(ProcessLookupError):
                os.kill(state.pid, signal.SIGTERM)
            return True
        if not state.alive():
            return False
        raise EngineMissing(
            f"the engine does not answer ({why}), and process {state.pid} may be another by now. Look at it with "
            f"`ps -p {state.pid}`: if it is the engine, `kill {state.pid}`; if not, remove {self.folder / STATE}"
        )

    def _ask(self, state: EngineState, query: Query, patience_s: float | None = None) -> Generator[Piece]:
        with socket.create_connection(("127.0.0.1", state.port), _CONNECT_S) as connection:
            connection.settimeout(patience_s)
            try:
                connection.sendall(msgspec.json.encode(query) + b"\n")
                with connection.makefile("rb") as stream:
                    for line in stream:
                        yield msgspec.json.decode(line, type=Piece)
            except OSError as error:
                raise EngineMissing(f"the engine (process {state.pid}) went away: {error}; ask again") from error


def _rows(first: Piece, pieces: Iterator[Piece]) -> Iterator[list[Any]]:
    yield from first.rows
    ended = first.end
    for piece in pieces:
        if piece.error is not None:
            raise SqlError(piece.error)
        yield from piece.rows
        ended = piece.end
    if not ended:
        raise EngineMissing("the engine went away in the middle of the answer; ask again")
