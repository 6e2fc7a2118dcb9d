"""`chronik cluster`: run a local cluster, look at one, change its membership."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="cluster", help="Run a local cluster, look at one, change its members.")

EXIT_CANNOT_START = 2


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
