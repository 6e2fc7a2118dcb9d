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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chronik.client.errors import ClientError
from chronik.pipeline.interrupts import ended_by_ctrl_c
from chronik.pipeline.java import require_java
from chronik.pipeline.spark_session import require_pyspark, start_session
from chronik.pipeline.sql.sql_errors import NO_SUCH_TABLE, explain
from chronik.pipeline.sql.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "@checkpoints"
"""A folder of the warehouse. Tables are folders beside it, by the names of topics: this one no topic can have."""

OLD_CHECKPOINTS = "_checkpoints"
"""Where checkpoints were before. A topic can have that name."""

_PARTS_OF_A_CHECKPOINT = ("metadata", "offsets", "commits")
_POLL_S = 1
_PROJECT_FILES = ("spark-pipeline.yml", "spark-pipeline.yaml")


class TransformFailed(ClientError):
    """A transform could not be run or failed; the text says why and what to do."""


def run_file(file: Path, *, bootstrap: str, warehouse: Path, master: str | None) -> None:
    """Run one file, or project, to its end."""
    if not file.is_file():
        raise TransformFailed(f"{file} is a folder; give a file in it" if file.is_dir() else f"there is no file {file}")
    os.environ["CHRONIK_BOOTSTRAP"] = bootstrap
    os.environ["CHRONIK_WAREHOUSE"] = str(warehouse)
    if file.name in _PROJECT_FILES:
        _run_project(file, master)
    elif file.suffix == ".py":
        # For the workers that Spark starts on this machine, which unpickle what a file imported from beside it.
        beside = [str(file.resolve().parent), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in beside if part)
        spark = start_session(file.stem, master)
        try:
            with ended_by_ctrl_c(spark):
                run_python(file, spark, bootstrap, warehouse)
        finally:
            spark.stop()
    elif file.suffix == ".sql":
        try:
            script = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TransformFailed(f"{file} is no text in UTF-8: {error}") from error
        if not statements(script):
            raise TransformFailed(f"there is no statement in {file}")
        spark = start_session(file.stem, master)
        try:
            with ended_by_ctrl_c(spark):
                run_sql(script, spark, bootstrap, warehouse)
        finally:
            spark.stop()
    else:
        raise TransformFailed(f"{file} is no transform; give a .py or .sql file, or a {_PROJECT_FILES[0]}")


def checkpoints(warehouse: Path, file: Path) -> Callable[[str], str]:
    """Where the queries of a file keep their checkpoints: under the warehouse, by the names of file and query."""

    def checkpoint(name: str) -> str:
        if not name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"checkpoint({name!r}): a query needs a name, without . or .. between slashes")
        folder = warehouse / CHECKPOINTS / file.stem / name
        if not folder.exists():
            _bring(warehouse / OLD_CHECKPOINTS / file.stem / name, folder)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    return checkpoint


def _bring(old: Path, new: Path) -> None:
    """Move a checkpoint from where it was before, if it is one: it holds no path of its own, and its query goes on."""
    if not any((old / part).exists() for part in _PARTS_OF_A_CHECKPOINT):
        return
    new.parent.mkdir(parents=True, exist_ok=True)
    old.rename(new)
    print(f"chronik: moved the checkpoint {old} to {new}", file=sys.stderr)
    for emptied in (old.parent, old.parent.parent):
        with suppress(OSError):  # others are still there
            emptied.rmdir()


def run_python(file: Path, spark: SparkSession, bootstrap: str, warehouse: Path) -> None:
    """Run a PySpark file, then wait for the streaming queries that it started."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    names = {
        "spark": spark,
        "bootstrap": bootstrap,
        "warehouse": str(warehouse),
        "checkpoint": checkpoints(warehouse, file),
    }
    beside = str(file.resolve().parent)
    sys.path.insert(0, beside)  # as Python has it for a script: modules beside it can be imported
    try:
        spark.streams.resetTerminated()
        runpy.run_path(str(file), init_globals=names, run_name="__main__")
        _wait_for(spark)
    except (PySparkException, Py4JError) as error:
        raise TransformFailed(f"{_place_in(file, error)}{_told(error)}") from error
    except Exception as error:
        raise TransformFailed(f"{file} failed:\n{_stack_in(file, error)}") from error
    finally:
        sys.path.remove(beside)


def _stack_in(file: Path, error: Exception) -> str:
    """The stack of a failure from the file on: what called it is ours, and of no interest."""
    stack = error.__traceback__
    while stack is not None and stack.tb_frame.f_code.co_filename != str(file):
        stack = stack.tb_next
    return "".join(traceback.format_exception(type(error), error, stack)).rstrip()


def _place_in(file: Path, error: Exception) -> str:
    """The line of the file that a failure of Spark's comes from, if it comes from one: a query fails on its own."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}, line {lines[-1]}: " if lines else ""


def _wait_for(spark: SparkSession) -> None:
    """Wait until all streaming queries have ended; the first that fails, or has failed by now, ends the wait."""
    queries = spark.streams.active
    spark.streams.awaitAnyTermination(0)  # raises what ended one that is not active any more
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
    from deltalake.exceptions import DeltaError
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    from chronik.pipeline.sql.topic_views import TopicViews
    from chronik.pipeline.tables.delta_table import ForeignTable

    views = TopicViews(spark, bootstrap, warehouse)
    for statement in statements(script):
        try:
            for warning in views.prepare(statement):
                print(f"chronik: {warning}", file=sys.stderr)
            frame = spark.sql(statement)
            if frame.columns:
                frame.show(truncate=False)
        except (PySparkException, Py4JError) as error:
            missing = isinstance(error, AnalysisException) and error.getCondition() == NO_SUCH_TABLE
            raise TransformFailed(explain(error) + (views.hint(statement) if missing else "")) from error
        except (ForeignTable, DeltaError) as error:
            raise TransformFailed(str(error)) from error


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
