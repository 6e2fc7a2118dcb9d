"""Who this node is to its peers, whom it accepts, and log lines about strangers that do not flood the log."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

SAME_LINE_AGAIN_AFTER_S = 60.0
LINES_REMEMBERED_MAX = 1024


class Identity:
    """Exchanged in every handshake. `cluster_id` is None until the cluster has one, and then never changes."""

    def __init__(self, node_id: int, host: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.node_id = node_id
        self.directory_id = b""
        self.cluster_id: str | None = None
        self.host = host
        self.port = port
        self._clock = clock
        self._logged: dict[str, float] = {}

    def mismatch(self, cluster_id: str, node_id: int) -> str | None:
        """Why a node that says it is this is none of ours, if so. An unset cluster id matches any."""
        if self.cluster_id and cluster_id and cluster_id != self.cluster_id:
            return (
                f"node {node_id} belongs to cluster {cluster_id}, node {self.node_id} to cluster {self.cluster_id}: "
                f"check the addresses, or use an empty data folder"
            )
        if node_id == self.node_id:
            return f"both nodes have the id {node_id}: give each node an id of its own"
        return None

    def log_once(self, key: str, event: str, **values: object) -> None:
        """A warning, at most once a minute for the same key."""
        now = self._clock()
        last = self._logged.get(key)
        if last is not None and now - last < SAME_LINE_AGAIN_AFTER_S:
            return
        if len(self._logged) >= LINES_REMEMBERED_MAX:
            self._logged.clear()
        self._logged[key] = now
        log.warning(event, **values)
