"""Creating very many topics in the three ways that once failed: 100 threads, 10 threads, one batching client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka.admin import AdminClient, NewTopic

CREATE_TIMEOUT_S = 60.0
BATCH = 500
WAYS = ("100 threads", "10 threads", "one batching client")


def create_topics(way: str, bootstraps: list[str], names: list[str], partitions: int, replication: int) -> list[str]:
    """Creates all topics, spread over the given nodes; returns the failures."""
    if way == "one batching client":
        return _create_in_batches(bootstraps[0], names, partitions, replication)
    threads = int(way.split()[0])
    shares = [(bootstraps[number % len(bootstraps)], names[number::threads]) for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda share: _create_one_by_one(share[0], share[1], partitions, replication), shares)
        return [failure for failures in found for failure in failures]


def _create_one_by_one(bootstrap: str, names: list[str], partitions: int, replication: int) -> list[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    failures: list[str] = []
    for name in names:
        failures.extend(_wait(admin, [name], partitions, replication))
    return failures


def _create_in_batches(bootstrap: str, names: list[str], partitions: int, replication: int) -> list[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    failures: list[str] = []
    for start in range(0, len(names), BATCH):
        failures.extend(_wait(admin, names[start : start + BATCH], partitions, replication))
    return failures


def _wait(admin: AdminClient, names: list[str], partitions: int, replication: int) -> list[str]:
    futures = admin.create_topics(
        [NewTopic(name, partitions, replication) for name in names], request_timeout=CREATE_TIMEOUT_S
    )
    failures: list[str] = []
    for name, future in futures.items():
        error = future.exception(CREATE_TIMEOUT_S)
        if error is not None:
            failures.append(f"{name}: {error}")
    return failures
