"""Starting Spark from a command: the master, quiet logs, and settings that suit topics and small jobs."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from chronik.pipeline.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"

_MASTER = re.compile(
    r"local|local\[(?:\*|[1-9]\d*)(?:,\s*[1-9]\d*)?\]|local-cluster\[[^\]]+\]|spark://.+|k8s://.+|yarn"
)

_EXTRA = ("pyspark", "pyarrow", "numpy", "pandas", "deltalake")

_REPEATED = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers that print an error, with Java's stack in it, that is raised as an exception as well."""

_NOISE = (b"WARNING: Using incubator modules",)


class SparkMissing(RuntimeError):
    """PySpark is not installed; the text has the command that installs it."""


def require_pyspark() -> None:
    """Raise SparkMissing unless everything that the pipeline needs from PyPI is there. Imports nothing: it is quick."""
    missing = [module for module in _EXTRA if find_spec(module) is None]
    if missing:
        raise SparkMissing(
            f"SQL and the pipeline need the extra chronik[pipeline], of which {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed. Install it with: pip install 'chronik[pipeline]'"
        )


def chosen_master(given: str | None) -> str:
    """Where Spark is to run. ValueError for what Spark would refuse, after it was started, in Java."""
    master = given or os.environ.get("CHRONIK_SPARK_MASTER") or DEFAULT_MASTER
    if not _MASTER.fullmatch(master):
        raise ValueError(
            f"--master {master}: Spark runs on local[*] or local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn"
        )
    return master


def session_settings(master: str) -> dict[str, str]:
    """What every session of ours is started with; a person's own settings come on top."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.enabled": "true",
    }
    if master.startswith("local"):
        # Executors elsewhere may not have this version of Chronik's daemon; here they do.
        settings["spark.python.daemon.module"] = "chronik.pipeline.worker_daemon"
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.extraJavaOptions"] = (
            f"-Dlog4j2.configurationFile=file:{_quiet_logging()} -XX:+UseSerialGC"
        )
    return settings


def start_session(app: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session, new or the one that this process already has."""
    require_pyspark()
    require_java()
    chosen = chosen_master(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(chosen).appName(app)
    for name, value in {**session_settings(chosen), **(settings or {})}.items():
        builder = builder.config(name, value)
    for repeated in _REPEATED:
        logging.getLogger(repeated).setLevel(logging.CRITICAL)
    with _noise_dropped():
        return builder.getOrCreate()


@contextmanager
def _noise_dropped() -> Iterator[None]:
    """Have the JVM that is started meanwhile write its errors through a filter that drops what no person needs."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        yield
        return
    errors = os.dup(2)
    readable, writable = os.pipe()
    os.dup2(writable, 2)
    os.close(writable)
    try:
        yield
    finally:
        os.dup2(errors, 2)
        threading.Thread(target=_pass_on, args=(readable, errors), daemon=True).start()


def _pass_on(readable: int, errors: int) -> None:
    with os.fdopen(readable, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                os.write(errors, line)


def _quiet_logging() -> str:
    return str(files("chronik.pipeline") / "quiet-log4j2.properties")
