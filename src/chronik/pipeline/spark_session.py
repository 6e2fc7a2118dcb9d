"""Starting Spark from a command: the master, quiet logs, and settings that suit topics and small jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from chronik.pipeline.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"


class SparkMissing(RuntimeError):
    """PySpark is not installed; the text has the command that installs it."""


def require_pyspark() -> None:
    """Raise SparkMissing unless everything that the pipeline needs from PyPI is there."""
    for module in ("pyspark", "pyarrow", "numpy", "deltalake"):
        try:
            __import__(module)
        except ImportError as error:
            raise SparkMissing(
                f"the pipeline needs {module}, which is not installed ({error}). "
                "Install it with: pip install 'chronik[pipeline]'"
            ) from error


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
    require_java()
    require_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    chosen = master or os.environ.get("CHRONIK_SPARK_MASTER") or DEFAULT_MASTER
    builder = SparkSession.builder.master(chosen).appName(app)
    for name, value in {**session_settings(chosen), **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _quiet_logging() -> str:
    return str(files("chronik.pipeline") / "quiet-log4j2.properties")
