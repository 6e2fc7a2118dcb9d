"""A cluster as its client sees it: where to go with a request, one connection per broker, and what to do when it moved.

A `Cluster` belongs to one thread. Requests are typed messages of `chronik.protocol`; what they mean is the business of
the callers (`admin`, `producer`, `consumer`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from chronik.client.addresses import parse_bootstrap
from chronik.client.connection import Connection, ConnectionSettings
from chronik.client.errors import ConnectionFailed, NoBrokerReachable, raise_for_code
from chronik.client.metadata import Broker, Metadata, TopicMetadata, TopicPartition
from chronik.client.retry import RetryPolicy, retry
from chronik.protocol.codec import Message
from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from chronik.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

R = TypeVar("R", bound=Message)
T = TypeVar("T")

log = logging.getLogger(__name__)

GROUP = 0
TRANSACTION = 1


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionSettings = ConnectionSettings()
    retry: RetryPolicy = RetryPolicy()
    metadata_max_age_s: float = 300.0


class Cluster:
    """Connections to a cluster, found through a list of brokers of which one must answer."""

    def __init__(self, bootstrap: str | Sequence[str], settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self.metadata = Metadata()
        self._bootstrap = parse_bootstrap(bootstrap)
        self._connections: dict[int, Connection] = {}
        self._contact: Connection | None = None
        self._coordinators: dict[tuple[int, str], Broker] = {}
        self._wanted: set[str] = set()
        self._doubted: set[str] = set()
        self._refreshed_at = 0.0
        self._reached = False

    def close(self) -> None:
        """Close all connections. The cluster can be used again; it connects anew."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._contact is not None:
            self._contact.close()
            self._contact = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- where things are ---------------------------------------------------------------------------------------------

    def refresh(
        self, topics: Iterable[str] | None = (), *, all_topics: bool = False, auto_create: bool = False
    ) -> Metadata:
        """Ask any broker for metadata: of these topics, of all that were asked for before when what is known of them is
        old or none are named, or of all topics there are.

        `auto_create` lets the broker create topics that do not exist, if it is set up to.
        """
        named = set(topics or ())
        self._wanted |= named
        everything = all_topics or not named or self._is_stale()
        asked = self._wanted if everything else named | self._doubted
        request = MetadataRequest(
            topics=None if all_topics else [MetadataRequestTopic(name=name) for name in sorted(asked)],
            allow_auto_topic_creation=auto_create,
        )
        answer = self.call_any(request, MetadataResponse)
        raise_for_code(answer.error_code, "metadata")
        if all_topics:
            self.metadata.topics.clear()
        self.metadata.update(answer)
        self._doubted.difference_update(topic.name or "" for topic in answer.topics)
        if everything:
            self._refreshed_at = time.monotonic()
        self._drop_moved_connections()
        return self.metadata

    def topic(self, name: str, *, auto_create: bool = False) -> TopicMetadata:
        """What is known of a topic, asked for again while it is unknown, for a short time."""

        def attempt() -> TopicMetadata:
            if not self.knows(name):
                self.refresh([name], auto_create=auto_create)
            return self.metadata.topic(name)

        return retry(f"finding topic {name}", self.settings.retry, attempt)

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask for what is not known of these topics, all at once. What is not there is not an error yet."""
        missing = {topic for topic in topics if not self.knows(topic)}
        if missing:
            retry("looking up topics", self.settings.retry, lambda: self.refresh(missing))

    def leader(self, where: TopicPartition) -> Broker:
        """The leader of a partition, asked for again while there is none, for as long as the retry policy says."""

        def attempt() -> Broker:
            if not self.knows(where.topic):
                self.refresh([where.topic])
            return self.metadata.leader(where)

        return retry(
            f"finding the leader of {where}",
            self.settings.retry,
            attempt,
            before_next=lambda _: self.doubt(where.topic),
        )

    def knows(self, topic: str) -> bool:
        """Whether what is cached of a topic may be used without asking the cluster."""
        return topic in self.metadata.topics and topic not in self._doubted and not self._is_stale()

    def doubt(self, topic: str) -> None:
        """Have the next question about a topic ask the cluster: what is cached turned out to be wrong."""
        self._doubted.add(topic)

    def brokers(self) -> list[Broker]:
        """All brokers of the cluster, by their ids."""
        if not self.metadata.brokers or self._is_stale():
            self.refresh()
        return [broker for _, broker in sorted(self.metadata.brokers.items())]

    def coordinator(self, kind: int, key: str) -> Broker:
        """The broker that coordinates a group (kind GROUP) or a transactional id (kind TRANSACTION)."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        answer = self.call_any(
            FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]), FindCoordinatorResponse
        )
        what = f"the coordinator of {'group' if kind == GROUP else 'transactional id'} {key}"
        if answer.coordinators:
            found = answer.coordinators[0]
            raise_for_code(found.error_code, what, found.error_message)
            broker = Broker(found.node_id, found.host, found.port)
        else:
            raise_for_code(answer.error_code, what, answer.error_message)
            broker = Broker(answer.node_id, answer.host, answer.port)
        self._coordinators[kind, key] = broker
        return broker

    # -- asking -------------------------------------------------------------------------------------------------------

    def connect(self, broker: Broker) -> Connection:
        """A new connection to a broker, for a caller that keeps requests under way; it is the caller's to close."""
        try:
            return Connection(broker.host, broker.port, self.settings.connection)
        except ConnectionFailed as error:
            raise ConnectionFailed(
                f"broker {broker.node_id} advertises {broker.address}, which cannot be used from here: {error}"
            ) from error

    def connection(self, broker: Broker) -> Connection:
        """The shared connection to a broker."""
        known = self._connections.get(broker.node_id)
        if known is None or known.closed:
            known = self._connections[broker.node_id] = self.connect(broker)
        return known

    def call(
        self,
        broker: Broker,
        request: Message,
        response: type[R],
        *,
        newest: int | None = None,
        timeout_s: float | None = None,
    ) -> R:
        """Ask one broker, once."""
        return self.connection(broker).call(request, response, newest=newest, timeout_s=timeout_s)

    def call_any(
        self, request: Message, response: type[R], *, newest: int | None = None, timeout_s: float | None = None
    ) -> R:
        """Ask whichever broker answers: every known address is tried once, the connected ones first."""
        attempts: dict[str, Exception] = {}
        for address, connect in self._candidates():
            try:
                answer = connect().call(request, response, newest=newest, timeout_s=timeout_s)
            except ConnectionFailed as error:
                attempts[address] = error
                continue
            self._reached = True
            return answer
        raise NoBrokerReachable(attempts, reached_before=self._reached)

    def call_controller(
        self,
        what: str,
        request: Message,
        response: type[R],
        *,
        check: Callable[[R], None],
        on_retry: Callable[[Exception], None] | None = None,
    ) -> R:
        """Ask the controller, or any broker when it cannot be reached, until the answer passes `check`.

        `check` raises the KafkaError that the answer holds; retriable ones are tried again, after `on_retry`.
        """

        def attempt() -> R:
            answer = self._call_controller_once(request, response)
            check(answer)
            return answer

        def before_next(error: Exception) -> None:
            self._refreshed_at = 0.0
            if on_retry is not None:
                on_retry(error)

        return retry(what, self.settings.retry, attempt, before_next=before_next)

    def call_coordinator(
        self,
        kind: int,
        key: str,
        request: Message,
        response: type[R],
        *,
        check: Callable[[R], None],
        newest: int | None = None,
    ) -> R:
        """Ask the coordinator of a group or transactional id, following it when it moves."""

        def attempt() -> R:
            answer = self.call(self.coordinator(kind, key), request, response, newest=newest)
            check(answer)
            return answer

        return retry(
            f"asking the coordinator of {key}",
            self.settings.retry,
            attempt,
            before_next=lambda _: self._forget_coordinator(kind, key),
        )

    def on_leaders(
        self,
        what: str,
        wanted: Iterable[TopicPartition],
        ask: Callable[[Broker, list[TopicPartition]], dict[TopicPartition, T | KafkaError]],
    ) -> dict[TopicPartition, T]:
        """Do something at the leaders of partitions, following partitions that move, until all are done.

        `ask` gets a broker and its partitions and returns what came of each: a result, or the error of the broker.
        """
        done: dict[TopicPartition, T] = {}
        todo = set(wanted)

        def attempt() -> dict[TopicPartition, T]:
            failure: Exception | None = None
            for broker, places in self._by_leader(todo).items():
                try:
                    answers = ask(broker, places)
                except ConnectionFailed as error:
                    failure = error
                    self._doubt_all(places)
                    continue
                for place in places:
                    result = answers.get(place)
                    if result is None:
                        result = KafkaError(
                            ErrorCode.UNKNOWN_SERVER_ERROR,
                            f"{what}: broker {broker.node_id} did not answer for {place}",
                        )
                    if isinstance(result, KafkaError):
                        if not result.retriable:
                            raise result
                        failure = result
                        self._doubt_all([place])
                    else:
                        done[place] = result
                        todo.discard(place)
            if failure is not None:
                raise failure
            return done

        return retry(what, self.settings.retry, attempt)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _by_leader(self, places: Iterable[TopicPartition]) -> dict[Broker, list[TopicPartition]]:
        grouped: dict[Broker, list[TopicPartition]] = {}
        self.look_up(place.topic for place in places)
        for place in sorted(places):
            grouped.setdefault(self.leader(place), []).append(place)
        return grouped

    def _doubt_all(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self.doubt(place.topic)

    def _call_controller_once(self, request: Message, response: type[R]) -> R:
        if not self.metadata.brokers or self._is_stale():
            self.refresh()
        controller = self.metadata.brokers.get(self.metadata.controller_id)
        if controller is not None:
            try:
                connection = self.connection(controller)
            except ConnectionFailed as error:
                log.debug("the controller cannot be reached, asking another broker: %s", error)
            else:
                return connection.call(request, response)
        return self.call_any(request, response)

    def _forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def _is_stale(self) -> bool:
        return time.monotonic() - self._refreshed_at > self.settings.metadata_max_age_s or not self._refreshed_at

    def _drop_moved_connections(self) -> None:
        """Close connections to brokers that now have another address, and forget those that are gone."""
        for node_id, connection in list(self._connections.items()):
            broker = self.metadata.brokers.get(node_id)
            if broker is None or broker.address != connection.address:
                connection.close()
                del self._connections[node_id]

    def _candidates(self) -> Iterator[tuple[str, Callable[[], Connection]]]:
        """Addresses worth trying and how to connect to each: open connections first, then every address anew.

        An open connection may turn out to be dead, closed by the broker while it was idle; its address gets a second
        chance.
        """
        for connection in [*self._connections.values(), *([self._contact] if self._contact else [])]:
            if not connection.closed:
                yield f"open connection to {connection.address}", partial(_itself, connection)
        seen: set[str] = set()
        for broker in list(self.metadata.brokers.values()):
            seen.add(broker.address)
            yield broker.address, partial(self.connection, broker)
        for host, port in self._bootstrap:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if address not in seen:
                seen.add(address)
                yield address, partial(self._connect_contact, host, port)

    def _connect_contact(self, host: str, port: int) -> Connection:
        if self._contact is not None:
            self._contact.close()
        self._contact = Connection(host, port, self.settings.connection)
        return self._contact


def _itself(connection: Connection) -> Connection:
    return connection
