"""A small blocking Kafka client: what the command line, the bench, the Spark tasks and the tests talk to brokers with.

It imports nothing but `chronik.protocol`. Everything here belongs to one thread; processes and threads that work in
parallel have a `Cluster` each. It logs through the standard library, so that it is quiet unless its user asks.
TLS, consumer groups and transactions of its own are not part of it.

| Module | What lives there |
|---|---|
| `connection` | one socket: version negotiation, frames, limits |
| `cluster`, `metadata`, `retry`, `addresses` | where to go, what is known, how to try again |
| `offsets` | earliest, latest, by time |
| `producer`, `partitioner` | writing |
| `consumer`, `fetched` | reading, raw or decoded; what READ_COMMITTED hides |
| `admin.*` | topics, configs, cluster, groups and their lag, transactions |
| `errors` | failures that no broker named |
"""

from chronik.client.cluster import Cluster, ClusterSettings
from chronik.client.connection import Connection, ConnectionSettings
from chronik.client.consumer import Consumer, ConsumerSettings, fetch_range
from chronik.client.errors import (
    ClientError,
    ConnectionFailed,
    GaveUp,
    NoBrokerReachable,
    OffsetOutOfRange,
    RequestTimedOut,
    UnsupportedByBroker,
)
from chronik.client.fetched import ConsumerRecord, FetchedBatches
from chronik.client.metadata import Broker, TopicMetadata, TopicPartition
from chronik.client.offsets import EARLIEST, LATEST, Isolation
from chronik.client.producer import Delivery, Producer, ProducerSettings
from chronik.client.retry import RetryPolicy

__all__ = [
    "EARLIEST",
    "LATEST",
    "Broker",
    "ClientError",
    "Cluster",
    "ClusterSettings",
    "Connection",
    "ConnectionFailed",
    "ConnectionSettings",
    "Consumer",
    "ConsumerRecord",
    "ConsumerSettings",
    "Delivery",
    "FetchedBatches",
    "GaveUp",
    "Isolation",
    "NoBrokerReachable",
    "OffsetOutOfRange",
    "Producer",
    "ProducerSettings",
    "RequestTimedOut",
    "RetryPolicy",
    "TopicMetadata",
    "TopicPartition",
    "UnsupportedByBroker",
    "fetch_range",
]
