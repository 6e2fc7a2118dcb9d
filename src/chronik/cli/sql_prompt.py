"""The prompt of `chronik sql`: gathers lines until a query is complete, and asks it. Also reads scripts from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chronik.client.errors import ClientError
from chronik.pipeline.sql.statements import is_complete, statements

HISTORY = Path("~/.chronik_sql_history")
HISTORY_LINES = 1_000
_ENDING = ("exit", "quit", "\\q")


class Prompt:
    """Reads queries, each ended by a semicolon, until the input ends. An error is told, and the next query is read.

    For a person, Ctrl-C gives up the line or the query that is running, and Ctrl-D ends. From a pipe nothing is
    prompted for, the last query needs no semicolon, and Ctrl-C ends.
    """

    def __init__(self, ask: Callable[[str], None], *, person: bool) -> None:
        self._ask = ask
        self._person = person
        self._gathered = ""
        self._asking = False
        self.failures = 0

    def run(self) -> None:
        while True:
            try:
                if not self._step():
                    return
            except KeyboardInterrupt:
                if not self._person:
                    raise
                print("\nchronik: the query was cancelled" if self._asking else "", file=sys.stderr)
                self._gathered = ""

    def _step(self) -> bool:
        """Read a line and ask what is complete with it; whether to go on."""
        self._asking = False
        try:
            line = self._read("chronik> " if not self._gathered else "      -> ")
        except EOFError:
            self._end()
            return False
        if not self._gathered and line.strip().rstrip(";").strip().lower() in _ENDING:
            return False
        self._gathered = f"{self._gathered}\n{line}" if self._gathered else line
        if not self._gathered.strip():
            self._gathered = ""
        elif is_complete(self._gathered):
            self._ask_gathered()
        return True

    def _end(self) -> None:
        if not self._person:
            self._ask_gathered()
            return
        print(file=sys.stderr)
        if self._gathered.strip():
            print("chronik: the last query had no ; at its end and was not run", file=sys.stderr)

    def _ask_gathered(self) -> None:
        gathered, self._gathered = self._gathered, ""
        for query in statements(gathered):
            self._asking = True
            try:
                self._ask(query)
            except ClientError as error:
                self.failures += 1
                print(f"chronik: {error}", file=sys.stderr)

    def _read(self, prompt: str) -> str:
        if not self._person:
            return input()
        if sys.stdout.isatty():
            return input(prompt)
        sys.stderr.write(prompt)  # standard output has the answers alone
        sys.stderr.flush()
        return input()


def prompt(ask: Callable[[str], None]) -> bool:
    """Read queries from standard input until it ends; whether all that came from a pipe succeeded."""
    person = sys.stdin.isatty()
    reader = Prompt(ask, person=person)
    if not person:
        reader.run()
        return not reader.failures
    import readline

    print("Queries end with ; and this prompt with Ctrl-D. Every topic is a table: SHOW TABLES;", file=sys.stderr)
    history = HISTORY.expanduser()
    with suppress(OSError):  # there is none yet, or none that can be read
        readline.read_history_file(history)
    try:
        reader.run()
    finally:
        readline.set_history_length(HISTORY_LINES)
        try:
            readline.write_history_file(history)
        except OSError as error:
            print(f"chronik: the history was not written to {history}: {error}", file=sys.stderr)
    return True
