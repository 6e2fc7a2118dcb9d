"""What a node says of itself: its health with reasons, and its metrics. Nothing it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chronik.health import Health, Reading
from chronik.transactions.state import State

if TYPE_CHECKING:
    from chronik.node import Node


def health(node: Node) -> Health:
    """Ready means: this node is registered, has a leader to follow, and no log of it has failed."""
    reasons: list[str] = []
    raft = node.raft.status()
    if raft.problem is not None:
        reasons.append(raft.problem)
    elif not node.registration.registered:
        reasons.append("this node is not registered with the cluster yet")
    failed = [str(log) for log in node.logs.logs() if log.failure is not None]
    if failed:
        reasons.append(f"{len(failed)} log(s) stopped because their disk failed, the first is {failed[0]}")
    return Health(not reasons, reasons)


def readings(node: Node) -> Iterator[Reading]:
    """Everything beside the requests, which the HTTP side reads for itself."""
    raft, gauges = node.raft.status(), node.replicas.gauges()
    for name, text, value in (
        ("chronik_raft_term", "Current Raft term", raft.term),
        ("chronik_raft_leader", "Node id of the Raft leader, 0 if none is known", raft.leader_id),
        ("chronik_raft_is_leader", "1 on the Raft leader", int(raft.leader_id == node.config.node_id)),
        ("chronik_raft_commit_index", "Highest committed entry", raft.commit),
        ("chronik_raft_applied_index", "Highest applied entry", raft.applied),
        ("chronik_raft_apply_lag", "Entries committed and not applied", raft.commit - raft.applied),
        ("chronik_raft_elections_total", "Terms that began while this node was up", raft.elections),
        ("chronik_raft_snapshots_total", "Snapshots taken", raft.snapshots_taken),
        ("chronik_raft_snapshots_installed_total", "Snapshots received", raft.snapshots_installed),
        ("chronik_raft_syncs_total", "Syncs of the consensus log", raft.syncs),
        ("chronik_brokers", "Registered brokers", len(node.store.image.brokers)),
        ("chronik_topics", "Topics in the cluster", len(node.store.image.topics)),
        ("chronik_loop_lag_seconds", "How late the last beat of the event loop was", node.watchdog.lag_s),
        ("chronik_loop_slow_turns_total", "Turns of the event loop over 20 ms", node.watchdog.slow_turns),
        ("chronik_log_bytes", "Bytes in partition logs", sum(log.size_bytes for log in node.logs.logs())),
        ("chronik_logs", "Partition logs on this node", len(node.logs)),
    ):
        yield Reading(name, text, float(value))
    for field in gauges.__slots__:
        yield Reading(
            f"chronik_partitions_{field}", f"Partitions: {field.replace('_', ' ')}", float(getattr(gauges, field))
        )
    for field in node.replicas.metrics.__slots__:
        value = getattr(node.replicas.metrics, field)
        if isinstance(value, int):
            yield Reading(f"chronik_replication_{field}_total", f"Replication: {field.replace('_', ' ')}", float(value))
    for field in node.controller.counters.__slots__:
        counted = getattr(node.controller.counters, field)
        yield Reading(
            f"chronik_controller_{field}_total", f"As the controller: {field.replace('_', ' ')}", float(counted)
        )
    yield from node.groups.lag.readings()
    yield from _transactions(node)


def _transactions(node: Node) -> Iterator[Reading]:
    counts, coordinator = node.transactions.counts(), node.transactions
    for state in State:
        yield Reading(
            "chronik_transactions",
            "Transactional ids that this node coordinates, by state",
            float(counts[state]),
            {"state": state.label},
        )
    open_here = sum(len(log.producer_states.open) for log in node.logs.logs() if log.producer_states is not None)
    for name, text, value in (
        ("chronik_transactions_open", "Open transactions in partition logs of this node", open_here),
        ("chronik_transaction_markers_written_total", "Transaction markers written", coordinator.markers.written),
        ("chronik_transaction_marker_retries_total", "Deliveries of markers tried again", coordinator.delivery.retries),
    ):
        yield Reading(name, text, float(value))
