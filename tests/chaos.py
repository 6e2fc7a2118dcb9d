"""Random faults over three real nodes while producers and a consumer run, for as long as asked, and what came of it.

`python -m chaos --minutes 10 [--seed 7]`, in `tests/`. The seed decides which faults happen to whom and in which order;
what real processes and a real network make of it differs from run to run. Ends with code 1 when anything acknowledged
was lost, doubled, reordered, changed, or differs between replicas, or when the cluster did not become whole again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from random import Random

from chronik.client.errors import ClientError
from chronik.protocol.errors import KafkaError
from harness.cluster_view import wait_until_agreed
from harness.fault_proxy import FaultProxy
from harness.faults import LONG, Faults
from harness.node_process import three_nodes
from harness.one_node import OneNode
from harness.waiting import eventually
from harness.workload import Workload, differing_replicas

ALL = [1, 2, 3]
TOPIC = "chaos"
PARTITIONS = 6
SETTINGS = {"replica.lag.time.max.ms": "10000"}
"""A follower that only its leader cannot hear blocks writes for hardly longer than this: less than a producer's
patience, so that what is not acknowledged in the end is a fault of ours."""
PACE_S = 0.01
"""Between two records of a producer: enough to have something under way at any moment, for hours."""


class Chaos:
    """One run."""

    def __init__(self, directory: Path, seed: int, only: list[str]) -> None:
        self.random = Random(seed)
        self.network = FaultProxy()
        self.nodes = three_nodes(directory, SETTINGS, network=self.network)
        self.workload = Workload(self.nodes, TOPIC, PARTITIONS, pace_s=PACE_S)
        self.faults = Faults(self.nodes, self.workload, self.network, self.random)
        self.kinds = only or list(LONG)
        self.unavailable_s: defaultdict[str, list[float]] = defaultdict(list)
        self.topics: list[str] = []
        self.violations: list[str] = []
        self._started = time.monotonic()

    def run(self, minutes: float) -> None:
        until = time.monotonic() + minutes * 60
        for node in self.nodes:
            node.start(wait=False)
        wait_until_agreed(self.nodes, brokers=ALL)
        with OneNode(self.nodes[0]) as at:
            assert at.create(TOPIC, partitions=PARTITIONS, min_insync_replicas="2").error_code == 0
        self._started = time.monotonic()
        self.workload.start()
        self.workload.wait_for_progress()
        bag: list[str] = []
        while time.monotonic() < until:
            if not bag:
                bag = self.random.sample(self.kinds, len(self.kinds))  # each once before any again
            self._strike(bag.pop())
        self.workload.wait_for_progress()
        self.workload.stop()
        self._check()

    def _strike(self, kind: str) -> None:
        self.workload.forget_gaps()
        try:
            getattr(self.faults, kind)()
            self.workload.wait_for_progress()
            self._create_topic()
        finally:
            self.network.heal()
        gap_s = self.workload.longest_gap_s()
        self.unavailable_s[kind].append(gap_s)
        passed = time.monotonic() - self._started
        print(
            f"{passed:7.1f} s  {kind:28} a partition was unavailable for {gap_s:6.2f} s, "
            f"{self.workload.count():8} acknowledged, {len(self.workload.violations)} violations",
            flush=True,
        )

    def _create_topic(self) -> None:
        """A promise of the metadata, to be kept like any other."""
        name = f"made-{len(self.topics)}"
        node = self.random.choice(self.nodes)

        def created() -> bool:
            with OneNode(node) as at:
                return at.create(name).error_code in (0, 36)  # 36: an attempt that seemed to fail had made it

        eventually(created, f"{name} is created through node {node.node_id}")
        self.topics.append(name)

    def _check(self) -> None:
        self.violations.extend(self.workload.verify())
        view = wait_until_agreed(self.nodes, brokers=ALL, deadline_s=60.0)
        missing = {TOPIC, *self.topics} - {name for name, _ in view.topics}
        self.violations.extend(f"lost: topic {name}" for name in sorted(missing))
        try:
            eventually(lambda: not differing_replicas(self.nodes, TOPIC, PARTITIONS), "the replicas are the same", 30.0)
        except AssertionError:
            self.violations.extend(differing_replicas(self.nodes, TOPIC, PARTITIONS))

    def look_again(self) -> None:
        """After a run that ended early: what else can be found out."""
        try:
            self.workload.stop()
            self.violations.extend(self.workload.verify())
        except (AssertionError, OSError, ClientError, KafkaError) as error:
            self.violations.extend([*self.workload.violations, f"the log cannot be checked: {error}"])

    def summary(self, seed: int) -> str:
        lines = [
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, seed {seed}, {platform.system()} {platform.machine()}, "
            f"{os.cpu_count()} cores, Python {platform.python_version()}",
            f"ran {time.monotonic() - self._started:.0f} s",
            f"operations: {self.workload.count()} records acknowledged, {len(self.workload.seen)} read along, "
            f"{len(self.topics)} topics created",
            f"faults: {sum(map(len, self.unavailable_s.values()))}",
            "",
            f"{'fault':28} {'times':>5} {'unavailable p50':>16} {'max':>8}",
        ]
        for kind, gaps in sorted(self.unavailable_s.items()):
            lines.append(f"{kind:28} {len(gaps):5} {statistics.median(gaps):14.2f} s {max(gaps):6.2f} s")
        lines += ["", f"violations: {len(self.violations)}", *(f"  {found}" for found in self.violations[:50])]
        return "\n".join(lines)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.network.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults on a real cluster under load.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="draws one, and prints it, unless given")
    parser.add_argument("--only", action="append", default=[], choices=LONG, help="this fault, and others given so")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**32)
    print(f"seed {seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="chronik-chaos-"))
    chaos = Chaos(directory, seed, arguments.only)
    try:
        chaos.run(arguments.minutes)
    except (AssertionError, OSError, RuntimeError) as error:
        chaos.violations.append(f"the cluster did not come through: {error}")
        chaos.look_again()
    finally:
        print(chaos.summary(seed), flush=True)
        chaos.close()
    if chaos.violations:
        print(f"logs and data are kept in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
