"""Where the statements of a script end: at semicolons, those in quotes, backticks and comments left alone."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | --[^\n]* | /\*.*?(?:\*/|\Z) | .""", re.DOTALL | re.VERBOSE
)
_VISIBLE = re.compile(r"[^\n]")
_QUOTES = {"'", '"', "`"}


def statements(script: str) -> list[str]:
    """A script cut at its semicolons, each statement at the line and the column that it has in the script.

    What comes before it, and comments in it but for hints to Spark, are blank: errors name places in the script.
    """
    found: list[str] = []
    before, current = "", ""
    for token in _TOKEN.findall(script):
        if token == ";":
            if current.strip():
                found.append(before + current.rstrip())
            before, current = _place_behind(before + current + token), ""
        else:
            current += _blank(token) if _is_comment(token) else token
    if current.strip():
        found.append(before + current.rstrip())
    return found


def is_complete(script: str) -> bool:
    """Whether a script ends with the semicolon of its last statement: not in the middle of one, or of a text."""
    tokens = [token for token in _TOKEN.findall(script) if not token.isspace() and not _is_comment(token)]
    return bool(tokens) and tokens[-1] == ";" and not _QUOTES & set(tokens)


def _is_comment(token: str) -> bool:
    return token.startswith(("--", "/*")) and not token.startswith("/*+")


def _place_behind(text: str) -> str:
    """What leads to the place behind a text: its line breaks, and blanks up to the column."""
    return "\n" * text.count("\n") + " " * (len(text) - text.rfind("\n") - 1)


def _blank(text: str) -> str:
    return _VISIBLE.sub(" ", text)
