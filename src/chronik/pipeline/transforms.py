"""Running a person's own transforms: PySpark, SQL scripts and Declarative Pipelines projects.

A `.py` file runs with `spark`, `bootstrap`, `warehouse` and `checkpoint(name)` as names that it can use; streaming
queries that it leaves running are waited for, and the first that fails ends the run. A `.sql` file is a list of
statements over topics by name. `spark-pipeline.yml` is handed to Spark's own command as it is.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chronik.client.errors import ClientError
from chronik.pipeline.java import require_java
from chronik.pipeline.spark_session import require_pyspark, start_session
from chronik.pipeline.sql.sql_errors import explain
from chronik.pipeline.sql.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "_checkpoints"
_POLL_S = 1
_PROJECT_FILES = ("spark-pipeline.yml", "spark-pipeline.yaml")


class TransformFailed(ClientError):
    """A transform could not be run or failed; the text says why and what to do."""


def run_file(file: Path, *, bootstrap: str, warehouse: Path, master: str | None) -> None:
    """Run one file, or project, to its end."""
    if not file.exists():
        raise TransformFailed(f"there is no file {file}")
    os.environ["CHRONIK_BOOTSTRAP"] = bootstrap
    os.environ["CHRONIK_WAREHOUSE"] = str(warehouse)
    if file.name in _PROJECT_FILES:
        _run_project(file, master)
    elif file.suffix == ".py":
        spark = start_session(file.stem, master)
        try:
            run_python(file, spark, bootstrap, warehouse)
        finally:
            spark.stop()
    elif file.suffix == ".sql":
        spark = start_session(file.stem, master)
        try:
            run_sql(file.read_text(), spark, bootstrap, warehouse)
        finally:
            spark.stop()
    else:
        raise TransformFailed(f"{file} is no transform; give a .py or .sql file, or a {_PROJECT_FILES[0]}")


def checkpoints(warehouse: Path, file: Path) -> Callable[[str], str]:
    """Where the queries of a file keep their checkpoints: under the warehouse, by the names of file and query."""

    def checkpoint(name: str) -> str:
        folder = warehouse / CHECKPOINTS / file.stem / name
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    return checkpoint


def run_python(file: Path, spark: SparkSession, bootstrap: str, warehouse: Path) -> None:
    """Run a PySpark file, then wait for the streaming queries that it started."""
    from pyspark.errors import PySparkException

    names = {
        "spark": spark,
        "bootstrap": bootstrap,
        "warehouse": str(warehouse),
        "checkpoint": checkpoints(warehouse, file),
    }
    try:
        spark.streams.resetTerminated()
        runpy.run_path(str(file), init_globals=names, run_name="__main__")
        _wait_for(spark)
    except PySparkException as error:
        raise TransformFailed(_told(error)) from error
    except Exception as error:
        raise TransformFailed(f"{file} failed:\n{_stack_in(file, error)}") from error


def _stack_in(file: Path, error: Exception) -> str:
    """The stack of a failure from the file on: what called it is ours, and of no interest."""
    stack = error.__traceback__
    while stack is not None and stack.tb_frame.f_code.co_filename != str(file):
        stack = stack.tb_next
    return "".join(traceback.format_exception(type(error), error, stack)).rstrip()


def _wait_for(spark: SparkSession) -> None:
    """Wait until all streaming queries have ended; the first that fails, or has failed by now, ends the wait."""
    queries = spark.streams.active
    spark.streams.awaitAnyTermination(_POLL_S)  # raises what ended one that is not active any more
    while True:
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure
        running = next((query for query in queries if query.isActive), None)
        if running is None:
            return
        running.awaitTermination(_POLL_S)


def run_sql(script: str, spark: SparkSession, bootstrap: str, warehouse: Path) -> None:
    """Run the statements of a script one after the other; what those say that have an answer is printed."""
    from pyspark.errors import PySparkException

    from chronik.pipeline.sql.topic_views import TopicViews

    views = TopicViews(spark, bootstrap, warehouse)
    for statement in statements(script):
        try:
            for warning in views.prepare(statement):
                print(f"chronik: {warning}", file=sys.stderr)
            frame = spark.sql(statement)
        except PySparkException as error:
            raise TransformFailed(explain(error)) from error
        if frame.columns:
            frame.show(truncate=False)


def _run_project(file: Path, master: str | None) -> None:
    """Spark's own runner of Declarative Pipelines; Hive's catalog lets a second run find the first one's tables."""
    require_java()
    require_pyspark()
    runner = Path(sys.executable).parent / "spark-pipelines"
    if not runner.exists():
        raise TransformFailed(
            f"Spark's runner of Declarative Pipelines is not at {runner}. "
            "Install it with: pip install 'chronik[pipeline]'"
        )
    command = [str(runner), "run", "--conf", "spark.sql.catalogImplementation=hive", "--spec", str(file.resolve())]
    if master is not None:
        command += ["--master", master]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(command, env=environment, cwd=file.resolve().parent, check=False)
    if ended.returncode:
        raise TransformFailed(f"the pipeline {file} failed with code {ended.returncode}; its own messages are above")


def _told(error: Exception) -> str:
    text = explain(error)
    if "STATE_STORE" in str(error) or ("checkpoint" in text.lower() and "incompatible" in text.lower()):
        return (
            f"{text}\nThe query changed in a way that its checkpoint cannot follow. Run the old query, or give the new "
            "one a checkpoint(name) of another name to start it anew"
        )
    return text
