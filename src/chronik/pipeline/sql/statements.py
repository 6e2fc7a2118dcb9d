"""Where the statements of a script end: at semicolons, those in quotes, backticks and comments left alone."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | --[^\n]* | /\*.*?(?:\*/|\Z) | .""", re.DOTALL | re.VERBOSE
)
_QUOTES = {"'", '"', "`"}


def statements(script: str) -> list[str]:
    """A script cut at its semicolons. Comments are left out, but for hints to Spark."""
    parts: list[str] = [""]
    for token in _TOKEN.findall(script):
        if token == ";":
            parts.append("")
        else:
            parts[-1] += " " if _is_comment(token) else token
    return [part.strip() for part in parts if part.strip()]


def is_complete(script: str) -> bool:
    """Whether a script ends with the semicolon of its last statement: not in the middle of one, or of a text."""
    tokens = [token for token in _TOKEN.findall(script) if not token.isspace() and not _is_comment(token)]
    return bool(tokens) and tokens[-1] == ";" and not _QUOTES & set(tokens)


def _is_comment(token: str) -> bool:
    return token.startswith(("--", "/*")) and not token.startswith("/*+")
