"""`chronik sql`: SQL over topics, one query or a prompt."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from chronik.cli.output import show_table
from chronik.cli.session import EXIT_FAILED, Bootstrap, bootstrap_address, fail, failures_told
from chronik.cli.sql_prompt import prompt
from chronik.client.admin.topics import list_topics
from chronik.client.cluster import Cluster
from chronik.pipeline.java import JavaMissing, require_java
from chronik.pipeline.spark_session import SparkMissing, chosen_master, require_pyspark
from chronik.pipeline.sql.engine_client import Answer, EngineClient, SqlError, Wanted
from chronik.pipeline.sql.statements import statements

Format = Literal["table", "json", "csv"]
Warehouse = Annotated[
    str | None, Parameter(help="The folder that tables are in. Default $CHRONIK_WAREHOUSE, then ./warehouse")
]
Master = Annotated[str | None, Parameter(help="Where Spark runs: local[*] (default), spark://…, k8s://…, yarn.")]

MAX_TABLE_ROWS = 1_000
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a terminal would obey instead of showing it: values come from whoever may write to a topic."""


def sql(
    query: Annotated[str | None, Parameter(help="The query; a prompt when it is left out.")] = None,
    *,
    format: Format = "table",
    warehouse: Warehouse = None,
    master: Master = None,
    stop: Annotated[bool, Parameter(negative="", help="End the engine that answers queries.")] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Ask SQL of topics: every topic is a table by its name.

    Example: chronik sql "SELECT city, count(*) FROM orders GROUP BY city"

    What has landed in a table is read there and the rest from the live log, each record once. Spark is started with the
    first query and stays for ten minutes, so that the next ones are quick.
    """
    with failures_told():
        client = EngineClient(
            Wanted(
                bootstrap_address(bootstrap),
                str(warehouse_folder(warehouse)),
                chosen_master(master),
            )
        )
        wanted = client.wanted
        if stop:
            none = f"no engine is running for {wanted.bootstrap}, warehouse {wanted.warehouse}, master {wanted.master}"
            print("stopped the engine" if client.stop() else none)
            return
        queries = None if query is None else statements(query)
        if queries == []:
            fail('the query is empty; ask for example: chronik sql "SHOW TABLES"')
        if client.state() is None:
            _require_spark()
            with Cluster(wanted.bootstrap) as cluster:  # nobody waits for Spark only to be told that nobody is there
                list_topics(cluster)
        if queries is None:
            if not prompt(lambda one: _ask(client, one, format)):
                sys.exit(EXIT_FAILED)
            return
        for one in queries:
            _ask(client, one, format)


def warehouse_folder(text: str | None) -> Path:
    """The warehouse of a command. ValueError for what is no folder."""
    chosen = text or os.environ.get("CHRONIK_WAREHOUSE") or "./warehouse"
    if "://" in chosen and not chosen.startswith("file://"):
        raise ValueError(
            f"--warehouse {chosen}: tables are kept in a folder for now, not in an object store; give a path that the "
            "driver and all executors can reach"
        )
    folder = Path(chosen.removeprefix("file://")).resolve()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--warehouse {chosen}: that is a file; give the folder that tables are in")
    return folder


def _ask(client: EngineClient, query: str, format: Format) -> None:
    if client.state() is None:
        print("starting Spark; the next queries are quick", file=sys.stderr)
    with closing(client.query(query)) as answer:
        for warning in answer.warnings:
            print(f"chronik: {warning}", file=sys.stderr)
        _show(answer, format)


def _require_spark() -> None:
    """What the engine needs is looked for before it is started: it could only tell its log."""
    try:
        require_pyspark()
        require_java()
    except (JavaMissing, SparkMissing) as error:
        fail(str(error))


def _show(answer: Answer, format: Format) -> None:
    names = [column.name for column in answer.columns]
    if not names:  # a statement that has no answer
        list(answer.rows)
    elif format == "json":
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise SqlError(f"column {twice} is there twice, which a JSON object cannot have: give it a name with AS")
        for row in answer.rows:
            sys.stdout.write(msgspec.json.encode(dict(zip(names, row, strict=True))).decode() + "\n")
    elif format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        for row in answer.rows:
            writer.writerow([_cell(value, nothing="") for value in row])
    else:
        _show_as_table(names, answer.rows)


def _show_as_table(names: list[str], rows: Iterator[list[Any]]) -> None:
    shown = [
        [value if type(value) is int else _visible(value) for value in row] for row in islice(rows, MAX_TABLE_ROWS)
    ]
    more = next(rows, None) is not None
    show_table([name.translate(_CONTROL) for name in names], shown, "(no rows)")
    if more:  # the rest is not asked for: it may be the whole of a topic
        print(f"… and more than these {MAX_TABLE_ROWS:,} rows; add LIMIT, or use --format csv or json")


def _visible(value: Any) -> str:
    return _cell(value, nothing="NULL").translate(_CONTROL)


def _cell(value: Any, *, nothing: str) -> str:
    if value is None:
        return nothing
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)
