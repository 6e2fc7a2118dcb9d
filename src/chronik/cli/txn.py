"""`chronik txn`: list and describe transactions, and end one that hangs in a partition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter

from chronik.cli.output import show_json, show_table
from chronik.cli.session import AsJson, Bootstrap, fail, open_cluster
from chronik.client.admin.transactions import (
    abort_transaction,
    active_producers,
    describe_transaction,
    list_transactions,
)
from chronik.client.metadata import TopicPartition

app = App(name="txn", help="List and describe transactions; end one that hangs.")

UNKNOWN_COORDINATOR_EPOCH = 0


@app.command(name="list")
def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(help="Only in this state, such as Ongoing. May be repeated.")] = (),
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """List the transactional ids of the cluster.

    Example: chronik txn list --state Ongoing
    """
    with open_cluster(bootstrap) as cluster:
        found = list_transactions(cluster, states=state)
    if json:
        show_json(
            [
                {
                    "transactional_id": t.transactional_id,
                    "state": t.state,
                    "producer_id": t.producer_id,
                    "coordinator": t.coordinator_id,
                }
                for t in found
            ]
        )
    else:
        rows = [(t.transactional_id, t.state, t.producer_id, t.coordinator_id) for t in found]
        empty = "no transactions" + (" in that state" if state else "; a producer with a transactional.id makes one")
        show_table(("transactional id", "state", "producer", "coordinator"), rows, empty)


@app.command
def describe(transactional_id: str, *, bootstrap: Bootstrap = None, json: AsJson = False) -> None:
    """Show the state of a transactional id, and which partitions its open transaction has written to.

    Example: chronik txn describe payments-1
    """
    with open_cluster(bootstrap) as cluster:
        found = describe_transaction(cluster, transactional_id)
    started = None if found.start_time_ms is None else datetime.fromtimestamp(found.start_time_ms / 1000, UTC)
    if json:
        show_json(
            {
                "transactional_id": transactional_id,
                "state": found.state,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "timeout_ms": found.timeout_ms,
                "started": started,
                "coordinator": found.coordinator_id,
                "partitions": [str(place) for place in found.partitions],
            }
        )
        return
    print(f"transactional id {transactional_id}: {found.state}, coordinated by node {found.coordinator_id}")
    print(f"  producer {found.producer_id}, epoch {found.producer_epoch}; timeout {found.timeout_ms} ms")
    if started is not None:
        print(f"  begun {started:%Y-%m-%d %H:%M:%S} UTC")
    for place in found.partitions:
        print(f"  {place}")


@app.command
def abort(
    topic: str,
    partition: int,
    *,
    start_offset: Annotated[int | None, Parameter(help="Where the transaction begins; needed if several hang.")] = None,
    bootstrap: Bootstrap = None,
) -> None:
    """End a transaction that hangs in a partition, by writing an abort marker there.

    Try nothing else first but patience: an abandoned transaction is aborted when its timeout is over.

    Example: chronik txn abort payments 0
    """
    place = TopicPartition(topic, partition)
    with open_cluster(bootstrap) as cluster:
        producers = active_producers(cluster, [place])[place]
        hanging = [p for p in producers if p.current_txn_start_offset >= 0]
        if start_offset is not None:
            hanging = [p for p in hanging if p.current_txn_start_offset == start_offset]
        if not hanging:
            fail(f"no transaction is open in {place}" + (f" at {start_offset}" if start_offset is not None else ""))
        if len(hanging) > 1:
            starts = ", ".join(str(p.current_txn_start_offset) for p in hanging)
            fail(f"{len(hanging)} transactions are open in {place}, at {starts}; choose one with --start-offset")
        (producer,) = hanging
        epoch = max(producer.coordinator_epoch, UNKNOWN_COORDINATOR_EPOCH)
        abort_transaction(cluster, place, producer.producer_id, producer.producer_epoch, epoch)
    print(
        f"aborted the transaction of producer {producer.producer_id} in {place}, open since offset "
        f"{producer.current_txn_start_offset}"
    )
