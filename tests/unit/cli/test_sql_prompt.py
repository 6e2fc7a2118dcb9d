"""The prompt of `chronik sql`, and how answers are shown, with somebody who types."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chronik.cli import sql as command
from chronik.cli.sql_prompt import Prompt
from chronik.pipeline.sql.engine_client import Answer, Column, Piece, SqlError

Typed = str | type[BaseException]


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has lines typed, or Ctrl-C; then the input ends."""

    def type_in(*lines: Typed) -> None:
        left = list(lines)

        def read(prompt: str = "") -> str:
            line = left.pop(0) if left else EOFError
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", read)

    return type_in


class Asked:
    """Notes what is asked; a query that says `long` is interrupted, one that says `wrong` fails."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def __call__(self, query: str) -> None:
        self.queries.append(query.strip())
        if "long" in query:
            raise KeyboardInterrupt
        if "wrong" in query:
            raise SqlError("it is wrong")


def test_ctrl_c_gives_up_the_line_and_the_prompt_goes_on(typing: Callable[..., None]) -> None:
    asked = Asked()
    typing("SELECT 1,", KeyboardInterrupt, KeyboardInterrupt, "SELECT 2", ";", "quit;", "SELECT 3;")
    Prompt(asked, person=True).run()
    assert asked.queries == ["SELECT 2"]


def test_ctrl_c_cancels_the_running_query_and_those_that_wait_behind_it(
    typing: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    typing("SELECT 'long'; SELECT 1;", "SELECT 2;")
    Prompt(asked, person=True).run()
    assert asked.queries == ["SELECT 'long'", "SELECT 2"]
    assert "the query was cancelled" in capsys.readouterr().err


def test_ctrl_d_ends_and_does_not_run_what_is_half_typed(
    typing: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    typing("DROP VIEW v")
    Prompt(asked, person=True).run()
    assert asked.queries == [] and "was not run" in capsys.readouterr().err


def test_a_script_from_a_pipe_needs_no_last_semicolon_and_ends_with_ctrl_c(
    typing: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked()
    typing("SELECT 1;", "SELECT wrong;", "SELECT 2")
    script = Prompt(asked, person=False)
    script.run()
    assert asked.queries == ["SELECT 1", "SELECT wrong", "SELECT 2"] and script.failures == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err == "chronik: it is wrong\n"
    typing("SELECT long;", "SELECT 3;")
    with pytest.raises(KeyboardInterrupt):
        Prompt(asked, person=False).run()


class Client:
    """An engine that gives rows without end, and notes when it is told that no more are wanted."""

    def __init__(self, *cells: Any) -> None:
        self.cells = list(cells)
        self.given = 0
        self.ended = False

    def state(self) -> object:
        return self

    def query(self, sql: str) -> Answer:
        def pieces() -> Iterator[Piece]:
            try:
                yield Piece()
            finally:
                self.ended = True

        def rows() -> Iterator[list[Any]]:
            while True:
                self.given += 1
                yield self.cells

        begun = pieces()
        next(begun)
        return Answer([Column(f"c{n}", "string") for n in range(len(self.cells))], [], rows(), begun)


def test_a_table_shows_the_first_rows_and_the_engine_is_told_that_no_more_are_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Client(1)
    command._ask(client, "SELECT 1", "table")  # type: ignore[arg-type]
    assert client.ended and client.given == command.MAX_TABLE_ROWS + 1
    assert "more than these 1,000 rows" in capsys.readouterr().out


def test_an_answer_that_is_given_up_in_the_middle_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("a")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command._ask(client, "SELECT 1", "csv")  # type: ignore[arg-type]
    assert client.ended


def test_a_terminal_obeys_nothing_that_is_in_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    command._ask(Client("\x1b[2Jgone\x07"), "SELECT 1", "table")  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\\x1b[2Jgone\\x07" in shown
