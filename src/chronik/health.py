"""The two small shapes in which parts of a node report to whoever watches it."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, frozen=True):
    """Whether the node can serve, and why not when it cannot."""

    ready: bool
    reasons: list[str] = []


class Reading(msgspec.Struct, frozen=True):
    """One number with its name and labels, as a component reports it. Counters' names end in `_total`."""

    name: str
    help: str
    value: float
    labels: dict[str, str] = {}
