"""A node: all parts of Chronik put together, started in the right order and stopped in bounded time.

Nothing here waits for consensus: the ports open first, then the logs are recovered, then this node registers itself in
the background. Each part is built once, here, and handed to those who need it.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import structlog
import uvloop

from chronik import __version__, status
from chronik.broker.administration import Administration
from chronik.broker.context import Services
from chronik.broker.limits import BrokerLimits
from chronik.broker.listener import Listener
from chronik.broker.router import Router
from chronik.cluster.controller import Controller
from chronik.cluster.membership import RaftMembers
from chronik.cluster.registration import BrokerRegistration
from chronik.cluster.settings import timings_from
from chronik.config import Address, NodeConfig
from chronik.data_folder import DataFolder, FolderInUse
from chronik.groups.coordinator import GroupCoordinator
from chronik.logs import configure_logging
from chronik.metadata.commands import RegisterBroker
from chronik.metadata.configs import ConfigView, static_problems
from chronik.metadata.delta import Delta
from chronik.metadata.model import NO_LEADER, BrokerStatus
from chronik.metadata.snapshot import UnreadableSnapshot
from chronik.metadata.store import MetadataStore, SlicedStore
from chronik.process import raise_open_files, tune_allocator, tune_collector
from chronik.raft.driver import RaftDriver
from chronik.raft.driver_settings import DriverSettings
from chronik.raft.storage import RaftStorage, StorageError
from chronik.raft.transport import PeerTransport
from chronik.replication.lease import Lease
from chronik.replication.manager import ReplicaManager
from chronik.storage.housekeeping import HousekeepingConfig
from chronik.storage.manager import LogManager
from chronik.transactions.coordinator import TransactionCoordinator
from chronik.watchdog import LoopWatchdog

if TYPE_CHECKING:
    from chronik.http.server import HttpServer

log = structlog.get_logger()

T = TypeVar("T")

LEAVE_TIMEOUT_S = 3.0
STOP_TIMEOUT_S = 4.2
"""After this long a stopping node ends, whatever is left; the next start recovers."""
EXIT_FAILED = 1
FIRST_REGISTRATION_S = 2.0
"""How long the ready line waits to be able to say that the node is registered; it is printed in any case."""
CLIENT_GRACE_S = 0.2
CONVERSION_THREADS = 2
INCARNATION_BYTES = 16
HTTP_SIDE = "chronik.http.server"


class CannotStart(Exception):
    """The node cannot be started as configured; the text is one line that says what to do."""


class CannotGoOn(Exception):
    """The node ended itself, in order, because it must not go on; the text is one line that says why."""


def run_node(config: NodeConfig) -> None:
    """Runs a node in this process until SIGTERM or SIGINT."""
    configure_logging(config.log_format, config.log_level)
    tune_allocator()
    raise_open_files()
    problems = static_problems(config.broker)
    if problems:
        raise CannotStart("; ".join(problems))
    try:
        folder = DataFolder(config.data_dir)
    except FolderInUse as error:
        raise CannotStart(str(error)) from error
    try:
        uvloop.run(Node(config, folder).run())
    finally:
        folder.close()


class Node:
    """One node. `run` is its whole life."""

    def __init__(self, config: NodeConfig, folder: DataFolder) -> None:
        self.config = config
        self.folder = folder
        self.kafka = config.kafka
        self.http: HttpServer | None = None
        self._http_listener: socket.socket | None = None
        self._cluster_id = ""
        self._stop_requested = asyncio.Event()
        self._failure: str | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_requested.set)
        self._build()
        starting = loop.create_task(self._start(), name="start")
        stopping = loop.create_task(self._stop_requested.wait(), name="stop")
        try:
            # Recovering large logs takes a while, and a node can be told to end before it is done.
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await stopping
            log.info("stopping", node=self.config.node_id)
        finally:
            self._end_in_any_case()
            starting.cancel()
            stopping.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)
            await self._stop()
        if self._failure is not None:
            raise CannotGoOn(self._failure)

    # --- building ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        config, node_id = self.config, self.config.node_id
        self.incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self.watchdog = LoopWatchdog()
        self.store = MetadataStore()
        self.view = ConfigView(self.store.image, node_id, {**config.broker, **_identity(config)})
        self.timings = timings_from(self.view)
        self.lease = Lease(alone=lambda: self.raft.leads_alone)
        self.transport = PeerTransport(
            node_id,
            config.peer.host,
            config.peer.port,
            advertised_host=config.advertise_peer.host,
            advertised_port=config.advertise_peer.port or None,
        )
        self.raft = RaftDriver(
            node_id,
            RaftStorage(self.folder.metadata),
            self.transport,
            SlicedStore(self.store),
            voters={voter.node_id: (voter.address.host, voter.address.port) for voter in config.voters},
            join=[(config.join.host, config.join.port)] if config.join else [],
            settings=_consensus(self.view),
        )
        self.store.attach(self.raft)
        self.logs = LogManager(self.folder.logs, housekeeping=_housekeeping(self.view))
        self.replicas = ReplicaManager(
            node_id,
            self.incarnation,
            self.store,
            self.logs,
            configs=self.view,
            transport=self.transport,
            lease=self.lease,
        )
        self.controller = Controller(
            node_id,
            self.store,
            self.raft,
            self.transport,
            self.view,
            timings=self.timings,
            members=RaftMembers(self.raft),
        )
        self.executor = ThreadPoolExecutor(CONVERSION_THREADS, "convert")
        self.services = Services(
            config=config,
            store=self.store,
            replicas=self.replicas,
            configs=self.view,
            controller_id=lambda: self.raft.leader_id or NO_LEADER,
            logs=self.logs,
            raft=self.raft,
            transport=self.transport,
            executor=self.executor,
        )
        self.groups = GroupCoordinator(self.store, self.replicas, self.view, transport=self.transport)
        self.services.coordinators["groups"] = self.groups
        self.transactions = TransactionCoordinator(
            node_id,
            self.store,
            self.replicas,
            self.view,
            self.transport,
            new_producer_id=self.services.producer_ids.take,
            offsets_marker=self.groups.complete_transaction,
        )
        self.services.coordinators["transactions"] = self.transactions
        self.administration = Administration(node_id, self.store, self.raft)
        self.services.coordinators["administration"] = self.administration
        self.listener = Listener(Router(self.services), limits=_limits(self.view), metrics=self.services.metrics)
        self.services.fetch_budget = self.listener.responses.fetch_budget
        self.registration = BrokerRegistration(
            node_id,
            self.store,
            self.raft,
            self.transport,
            describe=self._registration,
            renew_lease=self.lease.renew,
            revoke_lease=self.lease.revoke,
            on_superseded=self._superseded,
            rejoin=config.join is not None,
            timings=self.timings,
        )

    # --- life ----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self.watchdog.start()
        self.store.subscribe(self._cluster_named)
        self.raft.on_failure(self._consensus_failed)
        self.controller.start()
        if self.config.http is not None:
            self._http_listener = self._http_socket(self.config.http)
        host, port = await self._bind("Kafka", self.config.kafka, self.listener.start(*_where(self.config.kafka)))
        self.kafka = Address(host, port)
        try:
            await self._bind("peer", self.config.peer, self.raft.start())
        except (StorageError, UnreadableSnapshot) as error:
            raise CannotStart(str(error)) from error
        await self.logs.start()
        self.groups.start()
        self.transactions.start()
        self.replicas.start()
        self.registration.start()
        await self._say_ready()
        self.http = await self._start_http(self._http_listener) if self._http_listener is not None else None
        tune_collector()

    async def _bind(self, name: str, address: Address, start: Awaitable[T]) -> T:
        try:
            return await start
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotStart(
                    f"the {name} port {address} is in use; stop what listens there, or choose another with "
                    f"--{'kafka' if name == 'Kafka' else name} HOST:PORT"
                ) from error
            raise CannotStart(f"the {name} address {address} cannot be listened on: {error.strerror}") from error

    def _is_online(self) -> bool:
        """Registered alone is not enough: the first thing people do is create a topic, which needs a broker online."""
        broker = self.registration.broker
        if broker is None or broker.status is not BrokerStatus.ONLINE:
            return False
        if len(self.config.voters) > 1 or self.config.join is not None:
            return True
        # Alone, it is known that every partition gets its leader back in a moment.
        return all(partition.leader != NO_LEADER for _, _, partition in self.store.image.each_partition())

    async def _say_ready(self) -> None:
        """One line for people and scripts, with what is true at this moment."""
        await self.store.wait_until(lambda image: self._is_online(), FIRST_REGISTRATION_S)
        parts = [f"Kafka on {self.kafka}", f"node {self.config.node_id}", f"data in {self.config.data_dir}"]
        if self.config.http is not None:
            parts.append(f"health and metrics on http://{self.config.http}")
        if not self.registration.registered:
            parts.append("; ".join(status.health(self).reasons))
        print(f"chronik {__version__} is ready: {'; '.join(parts)}", flush=True)
        command = sys.argv[0]
        if command.endswith("chronik"):  # typed by somebody, who has the same command at hand elsewhere
            print(
                f"next, in another terminal: {command} topic create orders --bootstrap {self.kafka}   "
                "(Ctrl-C ends the node)",
                flush=True,
            )

    async def _start_http(self, listener: socket.socket) -> HttpServer:
        """Only now is the HTTP side imported: nobody who writes or reads records waits for it. On a thread, since on
        a busy machine it takes long enough for the other nodes to miss this one and elect another leader."""
        await asyncio.to_thread(importlib.import_module, HTTP_SIDE)
        from chronik.http.exposition import Exposition, NodeCollector
        from chronik.http.server import HttpServer

        exposition = Exposition(NodeCollector(self.services.metrics, [lambda: status.readings(self)]))
        server = HttpServer(
            listener,
            health=lambda: status.health(self),
            exposition=exposition,
            status=lambda: {**self.administration.view(), "health": status.health(self)},
        )
        server.start()
        return server

    def _http_socket(self, address: Address) -> socket.socket:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address.host, address.port))
        except OSError as error:
            listener.close()
            raise CannotStart(
                f"the HTTP address {address} cannot be listened on: {error.strerror}; "
                "choose another with --http HOST:PORT, or --http off"
            ) from error
        return listener

    async def _stop(self) -> None:
        """In the order in which others notice least: leaders move away, clients finish, then the disks are closed."""
        if self.http is not None:
            await self.http.stop()
        if len(self.store.image.brokers) > 1:
            await self.registration.leave(LEAVE_TIMEOUT_S)
        self.transactions.stop()
        self.groups.stop()
        await self.listener.close(CLIENT_GRACE_S)
        await self.registration.stop()
        self.administration.stop()
        self.replicas.stop()
        await self.controller.stop()
        await self.logs.close()
        await self.raft.stop()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.watchdog.stop()

    def _end_in_any_case(self) -> None:
        """A disk or a peer that does not answer must not keep the process: everything acknowledged is safe already."""

        def end() -> None:
            log.warning("not everything could be closed in time; the next start recovers", waited_s=STOP_TIMEOUT_S)
            sys.stdout.flush()
            os._exit(EXIT_FAILED if self._failure is not None else 0)

        timer = threading.Timer(STOP_TIMEOUT_S, end)
        timer.daemon = True
        timer.start()

    # --- what happens to a node ----------------------------------------------------------------------------------

    def _registration(self) -> RegisterBroker:
        config = self.config
        return RegisterBroker(
            node_id=config.node_id,
            incarnation=self.incarnation,
            host=config.advertise.host,
            port=config.advertise.port or self.kafka.port,
            peer_host=self.transport.address[0],
            peer_port=self.transport.address[1],
            directory_id=self.transport.identity.directory_id,
            rack=config.rack,
            host_name=config.host_name,
            http=str(config.http) if config.http is not None else "",
            software=f"chronik {__version__}",
        )

    def _cluster_named(self, delta: Delta) -> None:
        cluster_id = self.store.image.cluster_id
        if cluster_id and cluster_id != self._cluster_id:
            self._cluster_id = cluster_id
            self._naming = asyncio.get_running_loop().create_task(self.raft.set_cluster_id(cluster_id))

    def _superseded(self, reason: str) -> None:
        log.error("another process has registered with this node's id; stopping", reason=reason)
        self._failure = reason
        self._stop_requested.set()

    def _consensus_failed(self, reason: str) -> None:
        log.error("stopping: this node can no longer take part in consensus", reason=reason)
        self._failure = reason
        self._stop_requested.set()


def _where(address: Address) -> tuple[str, int]:
    return address.host, address.port


def _identity(config: NodeConfig) -> dict[str, str]:
    """What the node is and where, under the names by which Kafka's tools ask for it."""
    settings = {
        "node.id": str(config.node_id),
        "broker.id": str(config.node_id),
        "listeners": f"PLAINTEXT://{config.kafka}",
        "advertised.listeners": f"PLAINTEXT://{config.advertise}",
        "log.dirs": str(config.data_dir),
    }
    return {**settings, "broker.rack": config.rack} if config.rack else settings


def _consensus(view: ConfigView) -> DriverSettings:
    """An election timeout is a number of ticks; the tick is what is configured."""
    defaults = DriverSettings()
    return DriverSettings(
        tick_s=view.broker_int("raft.election.timeout.ms") / 1000 / defaults.raft.election_ticks,
        snapshot_entries=view.broker_int("metadata.snapshot.entries"),
    )


def _housekeeping(view: ConfigView) -> HousekeepingConfig:
    """How often logs are looked after, under Kafka's names."""
    return HousekeepingConfig(
        retention_interval_s=view.broker_int("log.retention.check.interval.ms") / 1000,
        producer_expiration_ms=view.broker_int("producer.id.expiration.ms"),
        producer_check_interval_s=view.broker_int("producer.id.expiration.check.interval.ms") / 1000,
        compaction_interval_s=max(0.1, view.broker_int("log.cleaner.backoff.ms") / 1000),
    )


def _limits(view: ConfigView) -> BrokerLimits:
    """The limits of the Kafka port that have a name in Kafka's configuration."""
    return BrokerLimits(
        frame_bytes_max=view.broker_int("socket.request.max.bytes"),
        connections_max=view.broker_int("max.connections"),
        connections_per_ip_max=view.broker_int("max.connections.per.ip"),
        connection_idle_s=view.broker_int("connections.max.idle.ms") / 1000,
    )
