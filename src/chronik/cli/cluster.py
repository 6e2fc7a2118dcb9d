"""`chronik cluster`: run a local cluster, look at one, change its membership."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from chronik.cli.output import show_json, show_table
from chronik.cli.session import AsJson, Bootstrap, fail, open_cluster
from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError, raise_for_code
from chronik.client.metadata import Broker
from chronik.protocol.messages.administer import AdministerRequest, AdministerResponse

app = App(name="cluster", help="Run a local cluster, look at one, change its members.")

EXIT_CANNOT_START = 2
ANSWER_TIMEOUT_S = 5.0
CHANGE_TIMEOUT_S = 30.0
PROGRESS_EVERY_S = 0.25

AtOnce = Annotated[int | None, Parameter(help="How many partitions move at the same time.")]
Throttle = Annotated[
    int | None, Parameter(help="Bytes per second that each node may send to replicas that are being moved.")
]


@app.command
def start(
    *,
    nodes: Annotated[int, Parameter(help="How many nodes.")] = 3,
    data_dir: Annotated[Path, Parameter(help="Each node's data is in DIR/node-N.")] = Path("./cluster"),
    port: Annotated[int, Parameter(help="Kafka on PORT, PORT+1, …; peers from PORT+100, HTTP from PORT+200.")] = 9092,
    http: Annotated[str, Parameter(help="'on' or 'off'")] = "on",
    restart: Annotated[bool, Parameter(help="Start a node again when it dies.")] = False,
    log_level: Annotated[str, Parameter(help="debug, info, warning or error")] = "info",
    set_: Annotated[
        tuple[str, ...], Parameter(name="--set", help="A Kafka broker setting for every node, NAME=VALUE.")
    ] = (),
) -> None:
    """Run N real nodes on this machine, in the foreground, with one merged log.

    Example: chronik cluster start --nodes 3 --data-dir ./cluster --port 9092

    Starting again on the same folder continues the same cluster.
    """
    from chronik.cli import supervisor

    if nodes < 1 or not 1 <= port <= 65535 - supervisor.HTTP_PORT_STEP - nodes:
        _refuse(f"--nodes {nodes} --port {port}: use at least one node and a port that leaves room for all of them")
    members = supervisor.plan(nodes, data_dir, port, http=http != "off")
    taken = supervisor.taken_ports(members)
    if taken:
        listed = ", ".join(map(str, taken))
        _refuse(f"port {listed} on 127.0.0.1 is in use; stop what listens there, or choose another with --port")
    data_dir.mkdir(parents=True, exist_ok=True)
    runner = supervisor.Supervisor(
        members, lambda node: supervisor.node_command(node, members, set_, log_level), restart=restart
    )
    sys.exit(asyncio.run(runner.run()))


def _refuse(text: str) -> None:
    print(f"chronik: {text}", file=sys.stderr)
    sys.exit(EXIT_CANNOT_START)


@app.command
def status(*, bootstrap: Bootstrap = None, json: AsJson = False) -> None:
    """Show every node's view of the cluster: roles, terms, progress, and the partitions in trouble.

    Example: chronik cluster status --bootstrap 127.0.0.1:9092
    """
    with open_cluster(bootstrap) as cluster:
        views, silent = _views(cluster)
    if json:
        show_json({"nodes": views, "unreachable": silent})
        return
    first = max(views, key=lambda view: int(view["applied"]))
    known = {broker["node_id"]: broker for broker in first["brokers"]}
    by_id = {view["node_id"]: view for view in views}
    rows: list[tuple[Any, ...]] = []
    for node_id in sorted({*known, *by_id}):
        broker, view = known.get(node_id), by_id.get(node_id)
        address = f"{broker['host']}:{broker['port']}" if broker else "?"
        state = broker["status"] if broker else "not registered"
        incarnation = broker["incarnation"][:8] if broker else ""
        if view is None:
            rows.append((node_id, address, state, "no answer", "", "", "", "", incarnation))
            continue
        lag = first["commit"] - view["applied"]
        role = view["role"] if view["voter"] else "observer"
        rows.append((node_id, address, state, role, view["term"], view["commit"], view["applied"], lag, incarnation))
    columns = ("node", "address", "status", "role", "term", "commit", "applied", "lag", "incarnation")
    show_table(columns, rows, "no node answered")
    _show_cluster(first)
    print(
        f"{first['topics']} topics, {first['partitions']} partitions, {first['under_replicated']} under-replicated, "
        f"{first['leaderless']} without a leader"
    )


def _show_cluster(view: dict[str, Any]) -> None:
    print(f"cluster {view['cluster_id'] or 'not known yet'}, controller {view['controller'] or 'none'}")
    voters, reachable = len(view["voters"]), view["voters_reachable"]
    if reachable <= voters // 2:
        print(f"no quorum: node {view['node_id']} reaches {reachable} of {voters} voters; start the others")


@app.command
def describe(*, bootstrap: Bootstrap = None, json: AsJson = False) -> None:
    """Show the members: voters, observers, brokers, and who is the controller.

    Example: chronik cluster describe --json
    """
    with open_cluster(bootstrap) as cluster:
        view = administer(cluster, "status")
    members = {
        key: view[key] for key in ("cluster_id", "controller", "voters", "observers", "feature_level", "brokers")
    }
    if json:
        show_json(members)
        return
    _show_cluster(view)
    print(f"feature level {view['feature_level']}")
    rows = []
    for broker in view["brokers"]:
        node_id = broker["node_id"]
        part = "voter" if node_id in view["voters"] else "observer" if node_id in view["observers"] else "none"
        where = f"{broker['host']}:{broker['port']}"
        rows.append((node_id, where, broker["status"], part, broker["rack"] or "", broker["software"]))
    show_table(("node", "address", "status", "raft", "rack", "software"), rows, "no node has registered yet")


@app.command
def add_node(node_id: int, *, bootstrap: Bootstrap = None) -> None:
    """Make a node that was started with --join a voter; it does so by itself unless it was removed before.

    Example: chronik cluster add-node 4
    """
    with open_cluster(bootstrap) as cluster:
        outcome = administer(cluster, "add-node", {"node_id": node_id}, CHANGE_TIMEOUT_S)
    if not outcome["voter"]:
        fail(f"node {node_id} is not a voter yet; it is added as soon as it has caught up (see chronik cluster status)")
    print(f"node {node_id} is a voter")


@app.command
def remove_node(
    node_id: int,
    *,
    force: Annotated[bool, Parameter(help="Also when the node still holds replicas, which are given up.")] = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Take a node out of the cluster for good, alive or dead. Drain it first.

    Example: chronik cluster remove-node 3
    """
    with open_cluster(bootstrap) as cluster:
        outcome = administer(cluster, "remove-node", {"node_id": node_id, "force": force}, CHANGE_TIMEOUT_S)
    if not outcome["removed"]:
        fail(f"node {node_id} is not removed yet; the cluster goes on trying (see chronik cluster status)")
    print(f"node {node_id} is removed; its data folder can be deleted")


@app.command
def drain(
    node_id: int,
    *,
    yes: Annotated[
        bool, Parameter(name=["--yes", "-y"], negative="", help="Do it; without, only show the plan.")
    ] = False,
    at_once: AtOnce = None,
    throttle: Throttle = None,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Move all replicas off a node, so that it can be removed.

    Example: chronik cluster drain 3 --yes
    """
    arguments = {"node_id": node_id, "at_once": at_once, "throttle": throttle}
    plan = _plan(bootstrap, "drain", arguments, execute=yes, json=json)
    if yes and plan["stuck"]:
        fail(
            f"{len(plan['stuck'])} partition(s) could not be moved off node {node_id}; add a node or lower their "
            f"replication factor and run it again, or take the node back with `chronik cluster undrain {node_id}`"
        )
    if yes and not json:
        print(f"node {node_id} holds no replicas; take it out with `chronik cluster remove-node {node_id}`")


@app.command
def undrain(node_id: int, *, bootstrap: Bootstrap = None) -> None:
    """Let a node that was drained have replicas and lead again. What was moved off it stays where it is now.

    Example: chronik cluster undrain 3
    """
    with open_cluster(bootstrap) as cluster:
        outcome = administer(cluster, "undrain", {"node_id": node_id})
    print(f"node {node_id} is {outcome['status']} and may be given replicas again (see chronik cluster rebalance)")


@app.command
def rebalance(
    *,
    yes: Annotated[
        bool, Parameter(name=["--yes", "-y"], negative="", help="Do it; without, only show the plan.")
    ] = False,
    at_once: AtOnce = None,
    throttle: Throttle = None,
    bootstrap: Bootstrap = None,
    json: AsJson = False,
) -> None:
    """Spread replicas and leaders evenly over the nodes.

    Example: chronik cluster rebalance --yes --throttle 50000000
    """
    _plan(bootstrap, "rebalance", {"at_once": at_once, "throttle": throttle}, execute=yes, json=json)


def _plan(
    bootstrap: str | None, action: str, arguments: dict[str, Any], *, execute: bool, json: bool
) -> dict[str, Any]:
    """Shows the plan, carries it out if asked to, and returns it."""
    with open_cluster(bootstrap) as cluster:
        broker = cluster.brokers()[0]
        plan: dict[str, Any] = administer(cluster, action, {**arguments, "execute": execute}, CHANGE_TIMEOUT_S, broker)
        if not json:
            _show_plan(plan)
        if execute and plan["moves"]:
            plan["outcome"] = _follow(cluster, broker, quiet=json)
    if json:
        show_json(plan)
    elif not plan["moves"]:
        print("nothing to move")
    elif not execute:
        print("this is the plan; add --yes to carry it out")
    return plan


def _show_plan(plan: dict[str, Any]) -> None:
    rows = [
        (move["topic"], move["partition"], _ids(move["before"]), _ids(move["after"])) for move in plan["listed"][:20]
    ]
    if rows:
        show_table(("topic", "partition", "replicas now", "then"), rows, "")
        print(f"{plan['moves']} partitions change, {plan['copies']} replicas are copied")
    for stuck in plan["stuck"]:
        print(f"cannot move {stuck['topic']}-{stuck['partition']}: {stuck['reason']}")


def _follow(cluster: Cluster, broker: Broker, *, quiet: bool) -> dict[str, Any]:
    """Shows how far the plan is until it has ended."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("moving", total=None)
        while True:
            state: dict[str, Any] = administer(cluster, "progress", broker=broker)
            bar.update(task, total=state["total"], completed=state["done"] + state["failed"])
            if not state["running"]:
                break
            time.sleep(PROGRESS_EVERY_S)
    if state["failure"]:
        fail(state["failure"])
    if state["failed"]:
        fail(f"moved {state['done']} of {state['total']} partitions, {state['failed']} were refused; run it again")
    if not quiet:
        print(f"moved {state['done']} of {state['total']} partitions")
    return state


def administer(
    cluster: Cluster,
    action: str,
    arguments: dict[str, Any] | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
    broker: Broker | None = None,
) -> Any:
    """Asks one node, or whichever answers, for one of Chronik's own actions."""
    payload = msgspec.json.encode(arguments or {})
    request = AdministerRequest(action=action, arguments=payload, timeout_ms=int(timeout_s * 1000))
    if broker is None:
        answer = cluster.call_any(request, AdministerResponse, timeout_s=timeout_s + ANSWER_TIMEOUT_S)
    else:
        answer = cluster.call(broker, request, AdministerResponse, timeout_s=timeout_s + ANSWER_TIMEOUT_S)
    raise_for_code(answer.error_code, action, answer.error_message)
    return msgspec.json.decode(answer.result)


def _views(cluster: Cluster) -> tuple[list[dict[str, Any]], list[int]]:
    """What each node that can be reached says, and those that cannot."""
    views: list[dict[str, Any]] = []
    silent: list[int] = []
    cluster.refresh()
    for broker in cluster.brokers():
        try:
            views.append(administer(cluster, "status", broker=broker))
        except ClientError:
            silent.append(broker.node_id)
    if not views:
        views.append(administer(cluster, "status"))
    return views, silent


def _ids(ids: list[int]) -> str:
    return ",".join(map(str, ids))
