"""Counters of replication, as plain integers that the metrics page reads; nothing here aggregates or locks."""

from __future__ import annotations


class ReplicationMetrics:
    """Counts since the process started."""

    __slots__ = (
        "bytes_fetched",
        "fetch_errors",
        "fetches",
        "isr_expansions",
        "isr_refusals",
        "isr_shrinks",
        "lapsed_lease_refusals",
        "leader_elections",
        "logs_set_aside",
        "truncations",
    )

    def __init__(self) -> None:
        self.isr_shrinks = 0
        self.isr_expansions = 0
        self.isr_refusals = 0
        self.leader_elections = 0
        self.lapsed_lease_refusals = 0
        self.fetches = 0
        self.fetch_errors = 0
        self.bytes_fetched = 0
        self.truncations = 0
        self.logs_set_aside = 0


class ReplicationGauges:
    """A look at all partitions of this node at one moment."""

    __slots__ = ("followers", "leaders", "max_lag", "offline", "reassigning", "under_min_isr", "under_replicated")

    def __init__(self) -> None:
        self.leaders = 0
        self.followers = 0
        self.offline = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.reassigning = 0
        self.max_lag = 0
