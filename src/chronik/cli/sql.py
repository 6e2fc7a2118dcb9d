"""`chronik sql`: SQL over topics, one query or a prompt."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from chronik.cli.output import show_table
from chronik.cli.session import Bootstrap, bootstrap_address, fail, failures_told
from chronik.pipeline.sql.engine_client import Answer, EngineClient, EngineMissing, SqlError, Wanted
from chronik.pipeline.sql.statements import is_complete, statements

Format = Literal["table", "json", "csv"]
Warehouse = Annotated[
    str | None, Parameter(help="The folder that tables are in. Default $CHRONIK_WAREHOUSE, then ./warehouse")
]
Master = Annotated[str | None, Parameter(help="Where Spark runs: local[*] (default), spark://…, k8s://…, yarn.")]

MAX_TABLE_ROWS = 1_000
HISTORY = Path("~/.chronik_sql_history")


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
                master or os.environ.get("CHRONIK_SPARK_MASTER") or "local[*]",
            )
        )
        if stop:
            print("stopped the engine" if client.stop() else "no engine is running")
            return
        if client.state() is None:
            _require_spark()
        if query is not None:
            _ask(client, query, format)
        else:
            _prompt(client, format)


def warehouse_folder(text: str | None) -> Path:
    """The warehouse of a command. ValueError for what is no folder."""
    chosen = text or os.environ.get("CHRONIK_WAREHOUSE") or "./warehouse"
    if "://" in chosen and not chosen.startswith("file://"):
        raise ValueError(
            f"--warehouse {chosen}: tables are kept in a folder for now, not in an object store; give a path that the "
            "driver and all executors can reach"
        )
    return Path(chosen.removeprefix("file://")).resolve()


def _ask(client: EngineClient, query: str, format: Format) -> None:
    if client.state() is None:
        print("starting Spark; the next queries are quick", file=sys.stderr)
    answer = client.query(query)
    for warning in answer.warnings:
        print(f"chronik: {warning}", file=sys.stderr)
    _show(answer, format)


def _require_spark() -> None:
    """What the engine needs is looked for before it is started: it could only tell its log."""
    from chronik.pipeline.java import JavaMissing, require_java
    from chronik.pipeline.spark_session import SparkMissing, require_pyspark

    try:
        require_pyspark()
        require_java()
    except (JavaMissing, SparkMissing) as error:
        fail(str(error))


def _show(answer: Answer, format: Format) -> None:
    names = [column.name for column in answer.columns]
    if format == "json":
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
    elif not names:
        list(answer.rows)
    else:
        _show_as_table(names, answer.rows)


def _show_as_table(names: list[str], rows: Iterator[list[Any]]) -> None:
    shown: list[list[Any]] = []
    more = 0
    for row in rows:
        if len(shown) < MAX_TABLE_ROWS:
            shown.append([value if type(value) is int else _cell(value, nothing="NULL") for value in row])
        else:
            more += 1
    show_table(names, shown, "(no rows)")
    if more:
        print(f"… and {more} more rows; add LIMIT, or use --format csv or json")


def _cell(value: Any, *, nothing: str) -> str:
    if value is None:
        return nothing
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)


def _prompt(client: EngineClient, format: Format) -> None:
    """Read queries, each ended by a semicolon, until the input ends."""
    import readline

    history = HISTORY.expanduser()
    if sys.stdin.isatty():
        print("Queries end with ; and this prompt with Ctrl-D. Every topic is a table: SHOW TABLES;")
        if history.exists():
            readline.read_history_file(history)
    gathered = ""
    try:
        while True:
            line = input("chronik> " if not gathered else "      -> ")
            if not gathered and line.strip().rstrip(";").lower() in ("exit", "quit", "\\q"):
                break
            gathered = f"{gathered}\n{line}" if gathered else line
            if is_complete(gathered):
                _ask_all(client, gathered, format)
                gathered = ""
    except EOFError:
        _ask_all(client, gathered, format)
    except KeyboardInterrupt:
        print()
    finally:
        if sys.stdin.isatty():
            readline.set_history_length(1_000)
            readline.write_history_file(history)


def _ask_all(client: EngineClient, gathered: str, format: Format) -> None:
    """The queries of a prompt: an error is told, and the prompt goes on."""
    for query in statements(gathered):
        try:
            _ask(client, query, format)
        except (SqlError, EngineMissing) as error:
            print(f"chronik: {error}", file=sys.stderr)
