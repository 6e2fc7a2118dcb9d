"""`chronik pipeline connect`: a Spark Connect server with every topic as a view.

Sessions of Spark Connect are apart from each other, so topics are global temporary views, `global_temp.NAME`: each is
fixed to a version of its table and an end of its log, and renewed every few seconds.

It listens on loopback only: clients of Spark Connect send a token over TLS, which this server does not speak, unless
the host is named `localhost`. From elsewhere it is reached through an SSH tunnel.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

from chronik.client.errors import ClientError
from chronik.pipeline.spark_session import start_session
from chronik.pipeline.sql.engine import connect_settings
from chronik.pipeline.sql.topic_views import TopicViews
from chronik.protocol.errors import KafkaError

RENEW_S = 5.0
_POLL_S = 0.2
_LAST_PORT = 65_535


def serve(
    *,
    bootstrap: str,
    warehouse: Path,
    master: str | None,
    port: int,
    until: Callable[[], Callable[[], bool]],
    token: str | None = None,
) -> None:
    """Serve until told to stop, by what `until` gives: it is asked for that once Spark, which takes signals for itself,
    has started. The token is CHRONIK_CONNECT_TOKEN, or a new one that is printed.
    """
    check_port(port)  # Spark would try for half a minute, and then tell of it in Java
    chosen = token or os.environ.get("CHRONIK_CONNECT_TOKEN") or secrets.token_urlsafe(24)
    spark = start_session("chronik connect", master, connect_settings(port, chosen))
    stopping = until()
    views = TopicViews(spark, bootstrap, warehouse, shared=True)
    told = views.prepare_all()
    _tell(told)
    print(f"Spark Connect is ready: sc://localhost:{port}/;token={chosen}", flush=True)
    print("Topics are views named global_temp.NAME; this ends with Ctrl-C", flush=True)
    due = time.monotonic() + RENEW_S
    while not stopping():
        time.sleep(_POLL_S)
        if time.monotonic() < due:
            continue
        try:
            warnings = views.prepare_all()
        except (KafkaError, ClientError) as error:
            warnings = [f"the views were not renewed: {error}"]
        _tell([warning for warning in warnings if warning not in told])
        told = warnings
        due = time.monotonic() + RENEW_S
    spark.stop()


def check_port(port: int) -> None:
    """ClientError when nobody can listen on a port of loopback, or somebody does."""
    if not 1 <= port <= _LAST_PORT:
        raise ClientError(f"--port {port}: ports are from 1 to {_LAST_PORT}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ClientError(f"port {port} cannot be listened on: {error.strerror}. Choose one with --port") from error


def _tell(warnings: list[str]) -> None:
    for warning in warnings:
        print(warning, flush=True)
