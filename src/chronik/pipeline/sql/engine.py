"""The process that keeps Spark warm between calls of `chronik sql`: one per (bootstrap, warehouse, master).

It answers queries on a loopback port, one JSON document a line, to those who know its token; and it runs a Spark
Connect server, also on loopback and with that token, for notebooks. It ends when told to, or after ten idle minutes.
Run as `python -m chronik.pipeline.sql.engine FOLDER`; its standard streams belong to a log file.
"""

from __future__ import annotations

import fcntl
import hmac
import itertools
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from chronik.client.errors import ClientError
from chronik.pipeline.spark_session import start_session
from chronik.pipeline.sql.answers import plain, shown
from chronik.pipeline.sql.caller_watch import cancelled_if_left
from chronik.pipeline.sql.engine_client import (
    FAILURE,
    MAX_QUERY_BYTES,
    START_DEADLINE_S,
    STATE,
    EngineState,
    Query,
    Wanted,
)
from chronik.pipeline.sql.process_identity import UNKNOWN, identity_of
from chronik.pipeline.sql.sql_errors import NO_SUCH_TABLE, explain
from chronik.protocol.errors import KafkaError

log = logging.getLogger(__name__)

IDLE_S = 600.0
ROWS_PER_LINE = 500
MAX_CALLERS = 16
CALLER_PATIENCE_S = 30.0
_POLL_S = 0.5


def connect_settings(port: int, token: str) -> dict[str, str]:
    """Settings that make a Spark session serve Spark Connect on loopback."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    """Answers queries until it is told to stop, or nobody has asked anything for `idle_s`."""

    def __init__(self, folder: Path, wanted: Wanted, idle_s: float = IDLE_S) -> None:
        self.folder = folder
        self.wanted = wanted
        self.idle_s = idle_s
        self.token = secrets.token_urlsafe(32)
        self.connect_port = free_port()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopping = threading.Event()
        self._last_used = time.monotonic()
        self._running = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._planning = threading.Lock()

    def start(self) -> None:
        """Start Spark, and let callers know."""
        from chronik.pipeline.sql.topic_views import TopicViews

        self.spark = start_session(
            "chronik sql",
            self.wanted.master,
            {
                **connect_settings(self.connect_port, self.token),
                "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
                "spark.sql.shuffle.partitions": "4",
                "spark.sql.warehouse.dir": str(self.folder / "spark-warehouse"),
            },
        )
        self.views = TopicViews(self.spark, self.wanted.bootstrap, Path(self.wanted.warehouse))
        self._write_state()
        self._listener.settimeout(_POLL_S)
        self._last_used = time.monotonic()
        log.info("engine ready on port %d, Spark Connect on port %d", self._port, self.connect_port)

    def serve(self) -> None:
        """Answer until told to stop, or nobody asks any more."""
        while not self._stopping.is_set() and not self._idle():
            with suppress(TimeoutError):
                caller, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(caller,), daemon=True).start()
        self.close()

    def close(self) -> None:
        (self.folder / STATE).unlink(missing_ok=True)
        self._listener.close()
        self.spark.stop()

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _write_state(self) -> None:
        state = EngineState(os.getpid(), self._port, self.connect_port, self.token, identity_of(os.getpid()) or UNKNOWN)
        fresh = self.folder / f"{STATE}.new"
        fresh.touch(mode=0o600)
        fresh.chmod(0o600)
        fresh.write_bytes(msgspec.json.encode(state))
        fresh.replace(self.folder / STATE)

    def _idle(self) -> bool:
        if self._running or self.spark.sparkContext.statusTracker().getActiveJobsIds():
            self._last_used = time.monotonic()
        return time.monotonic() - self._last_used > self.idle_s

    # -- callers ------------------------------------------------------------------------------------------------------

    def _serve(self, caller: socket.socket) -> None:
        with caller, caller.makefile("rb") as stream:
            caller.settimeout(CALLER_PATIENCE_S)
            try:
                query = msgspec.json.decode(stream.readline(MAX_QUERY_BYTES), type=Query)
                if not hmac.compare_digest(query.token, self.token):
                    _send(caller, {"error": "the token is wrong"})
                    return
                if query.stop:
                    _send(caller, {"end": True})
                    self._stopping.set()
                    return
                caller.settimeout(None)
                self._answer(query.sql, caller)
            except (msgspec.DecodeError, OSError) as error:
                log.warning("a caller went away or sent no query: %s", error)

    def _answer(self, sql: str, caller: socket.socket) -> None:
        with self._lock:
            self._running += 1
            if self._running > MAX_CALLERS:
                self._running -= 1
                _send(caller, {"error": f"{MAX_CALLERS} queries are running already; try again when one is done"})
                return
        tag = f"chronik-sql-{next(self._numbers)}"
        try:
            with cancelled_if_left(caller, lambda: self._cancel(tag)) as left:
                self._told(sql, caller, tag, left)
            if left():
                log.info("a caller left before the end of the answer; the query was cancelled")
        finally:
            with self._lock:
                self._running -= 1
            self._last_used = time.monotonic()

    def _told(self, sql: str, caller: socket.socket, tag: str, left: Callable[[], bool]) -> None:
        """Run a query and send what comes of it, be it a failure."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from chronik.pipeline.tables.delta_table import ForeignTable

        try:
            self._run(sql, caller, tag, left)
        except Exception as error:
            if left():
                return
            if isinstance(error, PySparkException | Py4JError):
                told = explain(error) + self._hint(sql, error)
            elif isinstance(error, KafkaError):
                told = f"{error.message} ({error.code.name})"
            elif isinstance(error, ClientError | ValueError | ForeignTable):
                told = str(error)
            else:  # a caller who is told nothing would take the engine for dead
                log.warning("a query failed", exc_info=True)
                told = f"{type(error).__name__}: {error}"
            _send(caller, {"error": told})

    def _run(self, sql: str, caller: socket.socket, tag: str, left: Callable[[], bool]) -> None:
        began = time.monotonic()
        # Both hold for this thread alone, of which each query has one.
        self.spark.sparkContext.addJobTag(tag)
        self.spark.sparkContext.setInterruptOnCancel(True)
        with self._planning:  # views are renewed by one query at a time; what each has planned stays as it is
            if left():
                return
            warnings = self.views.prepare(sql)
            frame = self.spark.sql(sql)
        columns = [{"name": field.name, "type": field.dataType.simpleString()} for field in frame.schema.fields]
        _send(caller, {"columns": columns, "warnings": warnings})
        rows: list[Any] = []
        for row in shown(frame).toLocalIterator(prefetchPartitions=True):
            rows.append([plain(value) for value in row])
            if len(rows) >= ROWS_PER_LINE:
                _send(caller, {"rows": rows})
                rows = []
        _send(caller, {"rows": rows, "end": True, "seconds": time.monotonic() - began})

    def _hint(self, sql: str, error: Exception) -> str:
        from pyspark.errors import AnalysisException

        missing = isinstance(error, AnalysisException) and error.getCondition() == NO_SUCH_TABLE
        return self.views.hint(sql) if missing else ""

    def _cancel(self, tag: str) -> None:
        from py4j.protocol import Py4JError

        try:
            self.spark.sparkContext.cancelJobsWithTag(tag)
        except (Py4JError, OSError) as error:  # Spark is ending, and the query with it
            log.warning("a query whose caller left could not be cancelled: %s", error)


def _send(caller: socket.socket, document: Any) -> None:
    caller.sendall(msgspec.json.encode(document) + b"\n")


def _taken(lock: IO[bytes], folder: Path) -> bool:
    """Take the lock; False when another engine has it and is ready. One that starts or ends is waited for."""
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (folder / STATE).exists() or time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def main() -> None:
    """Run the engine of a folder, unless one runs already: the lock is held for as long as the process lives."""
    folder = Path(sys.argv[1])
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    for noisy in ("py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    with (folder / "engine.lock").open("wb") as lock:
        if not _taken(lock, folder):
            log.info("another engine of this folder is running")
            return
        wanted = msgspec.json.decode((folder / "wanted.json").read_bytes(), type=Wanted)
        idle_s = float(os.environ.get("CHRONIK_ENGINE_IDLE_S", IDLE_S))
        engine = Engine(folder, wanted, idle_s)
        signal.signal(signal.SIGTERM, lambda *_: engine._stopping.set())
        try:
            engine.start()
        except Exception as error:  # whatever it is, who waits is to be told; the log has all of it
            (folder / FAILURE).write_text(explain(error))
            raise
        engine.serve()


if __name__ == "__main__":
    main()
