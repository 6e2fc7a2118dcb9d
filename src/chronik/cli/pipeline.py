"""`chronik pipeline`: topics kept as tables, a Spark Connect server, and transforms of a person's own."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from chronik.cli.session import AsJson, Bootstrap, bootstrap_address, fail, failures_told
from chronik.cli.sql import Master, Warehouse, warehouse_folder

app = App(name="pipeline", help="Keep topics as tables, serve them to notebooks, run transforms; all on Spark.")

EXIT_SOME_FAILED = 1
EXIT_INTERRUPTED = 130


@app.command
def tables(
    *,
    once: Annotated[bool, Parameter(negative="", help="Land what is there now, then end.")] = False,
    continuous: Annotated[bool, Parameter(negative="", help="Go on until interrupted (the default).")] = False,
    topic: Annotated[tuple[str, ...], Parameter(help="Only these; default all with table.enabled=true.")] = (),
    warehouse: Warehouse = None,
    master: Master = None,
    trigger: Annotated[float, Parameter(help="Seconds between rounds when nothing is waiting.")] = 2.0,
    max_offsets_per_trigger: Annotated[int, Parameter(help="Offsets of a topic that one round reads.")] = 1_000_000,
    allow_gaps: Annotated[bool, Parameter(help="Go on behind offsets that retention removed.")] = False,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Keep every topic that has table.enabled=true as a Delta table, each record exactly once.

    Example: chronik pipeline tables --once --warehouse ./warehouse
    """
    if once and continuous:
        fail("give --once or --continuous, not both")
    if trigger < 0 or max_offsets_per_trigger < 1:
        fail("--trigger must not be negative and --max-offsets-per-trigger must be at least 1")
    with failures_told(), _pipeline_failures_told():
        folder = warehouse_folder(warehouse)
        from chronik.pipeline.spark_session import start_session

        spark = start_session("chronik tables", master)
        from chronik.pipeline.tables.keeper import KeeperSettings, TableKeeper
        from chronik.pipeline.tables.progress import display

        logging.basicConfig(level=logging.WARNING, format="chronik: %(message)s")
        settings = KeeperSettings(
            bootstrap=bootstrap_address(bootstrap),
            warehouse=folder,
            topics=frozenset(topic),
            max_offsets_per_trigger=max_offsets_per_trigger,
            trigger_s=trigger,
            allow_gaps=allow_gaps,
        )
        with display(json=json) as board:
            keeper = TableKeeper(spark, settings, board.show)
            try:
                if not keeper.discover():
                    print(
                        "no topic has table.enabled=true; set it with: chronik topic alter NAME --set "
                        "table.enabled=true",
                        file=sys.stderr,
                    )
                if once:
                    succeeded = keeper.run_once()
                else:
                    keeper.run_continuously(_until_interrupted())
                    succeeded = True
            finally:
                keeper.close()
        spark.stop()
    sys.exit(0 if succeeded else EXIT_SOME_FAILED)


@app.command
def connect(
    *,
    port: Annotated[int, Parameter(help="Where Spark Connect listens, on loopback.")] = 15002,
    warehouse: Warehouse = None,
    master: Master = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Run a Spark Connect server for notebooks, with every topic as a view, until interrupted.

    Example: chronik pipeline connect --port 15002

    Topics are found as global_temp.NAME and renewed every few seconds; format("chronik") works as well.
    """
    with failures_told(), _pipeline_failures_told():
        from chronik.pipeline.sql.connect_server import serve

        serve(
            bootstrap=bootstrap_address(bootstrap),
            warehouse=warehouse_folder(warehouse),
            master=master,
            port=port,
            until=_until_interrupted,
        )


@app.command
def run(
    file: Path,
    *,
    warehouse: Warehouse = None,
    master: Master = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Run a transform: PySpark (FILE.py), SQL (FILE.sql) or a Declarative Pipelines project (spark-pipeline.yml).

    Example: chronik pipeline run examples/clickstream_sessions.py

    A .py file finds `spark`, `bootstrap`, `warehouse` and `checkpoint(name)` ready; a .sql file finds every topic as a
    table. Checkpoints are kept under the warehouse, so that a restart goes on where it ended.
    """
    with failures_told(), _pipeline_failures_told():
        from chronik.pipeline.transforms import run_file

        run_file(file, bootstrap=bootstrap_address(bootstrap), warehouse=warehouse_folder(warehouse), master=master)


@contextmanager
def _pipeline_failures_told() -> Iterator[None]:
    """Failures of the pipeline's own that a person can act on, as one line."""
    from chronik.pipeline.java import JavaMissing
    from chronik.pipeline.spark_session import SparkMissing, require_pyspark

    try:
        require_pyspark()
        yield
    except (JavaMissing, SparkMissing) as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        # PySpark is imported by now if it raised this, and not worth importing only to ask.
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        from chronik.pipeline.sql.sql_errors import explain

        fail(f"Spark failed: {explain(error)}")


def _until_interrupted() -> _Asker:
    return _Asker()


class _Asker:
    """Tells whether the process was asked to end; SIGINT and SIGTERM ask."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, lambda *_: self._asked.set())

    def __call__(self) -> bool:
        return self._asked.is_set()
