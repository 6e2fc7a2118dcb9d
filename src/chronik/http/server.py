"""The HTTP listener: health, metrics and what the node knows of the cluster. Loaded after the Kafka port is up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from chronik.health import Health
from chronik.http.exposition import Exposition

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STOP_TIMEOUT_S = 1


class HttpServer:
    """Serves on a socket that is already bound, in the event loop of the node."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        health: Callable[[], Health],
        exposition: Exposition,
        status: Callable[[], Any],
    ) -> None:
        self._listener = listener
        self._health = health
        self._exposition = exposition
        self._status = status
        self._task: asyncio.Task[None] | None = None
        routes = [
            Route("/health/live", self._live),
            Route("/health/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/v1/cluster", self._cluster),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            server_header=False,
        )
        self._server = uvicorn.Server(config)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        # The node owns the signals of the process; uvicorn's own handling is left out by calling below `serve`.
        await self._server._serve([self._listener])

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), STOP_TIMEOUT_S)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def _ready(self, request: Request) -> Response:
        health = self._health()
        status = "ready" if health.ready else "not ready"
        return JSONResponse({"status": status, "reasons": health.reasons}, 200 if health.ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._exposition.render(), media_type=METRICS_CONTENT_TYPE)

    async def _cluster(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self._status()), media_type="application/json")
