"""Rows of an answer as JSON values, and for people: bytes as text where they are text, times in ISO 8601."""

from __future__ import annotations

import base64
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any


def plain(value: Any) -> Any:
    """A value of Spark's as one that JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray):
        return readable(bytes(value))
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: plain(content) for name, content in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(name)): plain(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain(content) for content in value]
    return str(value)


def readable(value: bytes) -> str:
    """Bytes as the text they are, or as `base64:…` where they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
