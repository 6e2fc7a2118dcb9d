"""The `chronik` command: the table of its nouns. Each noun is a module that is imported only when it is used."""

from __future__ import annotations

import sys

from cyclopts import App

from chronik import __version__

app = App(
    name="chronik",
    help="A Kafka-compatible streaming platform. Start here: `chronik start`, then `chronik topic create orders`.",
    version=__version__,
    version_flags=["--version"],
)

# What is given here is all the help that is shown: the list of commands imports none of them.
app.command(
    "chronik.cli.start:start",
    help="""Run a node.

    One node on a laptop: chronik start

    The first of three: chronik start --node-id 1 --voters 1@10.0.0.1:9192,2@10.0.0.2:9192,3@10.0.0.3:9192
    """,
)
app.command("chronik.cli.cluster:app", name="cluster", help="Run a local cluster, look at one, change its members.")
app.command("chronik.cli.topic:app", name="topic", help="Create, list, describe, alter and delete topics.")
app.command("chronik.cli.group:app", name="group", help="List, describe and delete groups; move their offsets.")
app.command("chronik.cli.txn:app", name="txn", help="List and describe transactions; end one that hangs.")
app.command(
    "chronik.cli.produce:produce",
    help="""Write standard input to a topic, a record a line.

    Example: echo 'k1:hello' | chronik produce orders --key-separator :
    """,
)
app.command(
    "chronik.cli.consume:consume",
    help="""Print the records of a topic, a line each; waits for more until it is interrupted.

    Example: chronik consume orders --from earliest --max 10 --json
    """,
)
app.command(
    "chronik.cli.sql:sql",
    help="""Ask SQL of topics: every topic is a table by its name.

    Example: chronik sql "SELECT city, count(*) FROM orders GROUP BY city"

    What has landed in a table is read there and the rest from the live log, each record once. Spark is started with the
    first query and stays for ten minutes, so that the next ones are quick.
    """,
)
app.command("chronik.cli.pipeline:app", name="pipeline", help="Keep topics as tables; transforms; Spark Connect.")
app.command("chronik.cli.bench:app", name="bench", help="Measure a cluster: throughput, latency, topics, failover.")


@app.command
def version() -> None:
    """Print the version of Chronik."""
    print(f"chronik {__version__} (python {sys.version.split()[0]})")
