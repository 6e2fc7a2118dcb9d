"""The driver that keeps tables: what to read next, one Spark job for all topics, then a commit per topic.

It holds no state that matters. Where to go on is in the tables; what it has committed it also writes to the consumer
group `chronik-tables`, for tools to see, and never reads back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from deltalake.exceptions import DeltaError

from chronik.client import ClientError, Cluster, Isolation, TopicPartition
from chronik.client.admin.groups import commit_offsets
from chronik.pipeline.positions import earliest, latest
from chronik.pipeline.ranges import OFFSETS_PER_TASK, OffsetRange, deal, share
from chronik.pipeline.sql.sql_errors import explain
from chronik.pipeline.tables.delta_table import ForeignTable, PositionMoved
from chronik.pipeline.tables.ingest_task import TaskReport, TaskSpec, run_task
from chronik.pipeline.tables.kept_topic import Begins, KeptTopic, Landed, columns_of_schema, stopped_by, uses_schema
from chronik.pipeline.tables.layout import DEAD_LETTER_SUFFIX, TableSettings, all_settings
from chronik.pipeline.tables.maintenance import Maintenance
from chronik.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

GROUP = "chronik-tables"
DISCOVERY_S = 10.0
"""How long settings of topics are believed before they are asked for again."""

DEFAULT_MAX_OFFSETS = 1_000_000
"""Offsets of one topic that one round reads; bounds the memory, the files and the work that a crash repeats."""

DEFAULT_TRIGGER_S = 2.0


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    warehouse: Path
    topics: frozenset[str] = frozenset()
    """Only these; all that have `table.enabled` when it is empty."""

    max_offsets_per_trigger: int = DEFAULT_MAX_OFFSETS
    trigger_s: float = DEFAULT_TRIGGER_S
    allow_gaps: bool = False
    """Whether to go on behind offsets that retention removed before they were landed."""


class TopicProgress(msgspec.Struct, kw_only=True):
    """What one round did for one topic."""

    topic: str
    rows: int = 0
    value_bytes: int = 0
    files: int = 0
    dead_letters: int = 0
    rescued: int = 0
    lag: int = 0
    version: int = -1
    seconds: float = 0.0
    error: str | None = None


class _Plan(msgspec.Struct):
    kept: KeptTopic
    begins: Begins
    ranges: list[OffsetRange]
    lag: int


class TableKeeper:
    """Keeps the tables of a cluster's topics, round by round."""

    def __init__(
        self,
        spark: SparkSession,
        settings: KeeperSettings,
        report: Callable[[TopicProgress], None],
        maintenance: Maintenance | None = None,
    ) -> None:
        self.spark = spark
        self.settings = settings
        self.cluster = Cluster(settings.bootstrap)
        self.maintenance = maintenance or Maintenance()
        self._report = report
        self._kept: dict[str, KeptTopic] = {}
        self._stopped: dict[str, TableSettings] = {}
        self._refused: dict[str, str] = {}
        self._discovered_at = 0.0
        self._parallelism = spark.sparkContext.defaultParallelism

    def close(self) -> None:
        self.cluster.close()

    def run_once(self) -> bool:
        """Land everything that was there when it began, and tidy up; whether all topics succeeded."""
        self.discover()
        ends, failures = self._ends(list(self._kept.values()))
        for failure in failures:
            self._report(failure)
        failed = set(self._refused) | {failure.topic for failure in failures}
        while True:
            results = self.round(until=ends, leave_out=failed)
            failed |= {result.topic for result in results if result.error}
            if not any(result.rows or result.lag for result in results if not result.error):
                self.maintenance.run(list(self._kept.values()))
                return not failed

    def run_continuously(self, stopping: Callable[[], bool]) -> None:
        """Go on until told to stop. What fails is told and tried again: a topic alone, or all of them together."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        while not stopping():
            began = time.monotonic()
            try:
                if began - self._discovered_at > DISCOVERY_S:
                    self.discover()
                results = self.round()
            except (KafkaError, ClientError) as error:
                log.warning("the cluster could not be asked, trying again: %s", error)
                results = []
            except (PySparkException, Py4JJavaError) as error:  # a worker or an executor died, say for lack of memory
                log.warning("a job of Spark failed, trying again: %s", explain(error))
                results = []
            self.maintenance.run_if_due(list(self._kept.values()))
            if not any(result.lag and not result.error for result in results):
                deadline = began + self.settings.trigger_s
                while not stopping() and time.monotonic() < deadline:
                    time.sleep(min(0.1, max(deadline - time.monotonic(), 0.0)))

    def discover(self) -> list[str]:
        """Ask which topics are to be kept, and how; the names of all that are to be, also of those that cannot be."""
        chosen = self.settings.topics
        found = {one.topic: one for one in all_settings(self.cluster)}
        wanted = {name: one for name, one in found.items() if (name in chosen if chosen else one.enabled)}
        refused = dict.fromkeys(chosen - found.keys(), "there is no topic of that name")
        for name, one in wanted.items():
            known = self._kept.get(name)
            if known is None or known.settings != one:
                self._stopped.pop(name, None)
                try:
                    self._kept[name] = self._keep(one)
                except ValueError as error:
                    refused[name] = str(error)
        self._kept = {name: kept for name, kept in self._kept.items() if name in wanted and name not in refused}
        for name, why in sorted(refused.items()):
            if self._refused.get(name) != why:
                self._report(TopicProgress(topic=name, error=why))
        self._refused = refused
        self._discovered_at = time.monotonic()
        return sorted(wanted.keys() | refused.keys())

    def _keep(self, found: TableSettings) -> KeptTopic:
        """What keeps a topic as a table; ValueError says why it cannot be kept."""
        if found.topic.endswith(DEAD_LETTER_SUFFIX):
            raise ValueError(f"tables whose names end with {DEAD_LETTER_SUFFIX} are for dead letters, it is not kept")
        try:
            fixed = columns_of_schema(found.schema_ddl) if uses_schema(found) else None
        except ValueError as error:
            raise ValueError(f"table.schema cannot be used: {error}") from None
        return KeptTopic(found, self.settings.warehouse, fixed)

    # -- one round ----------------------------------------------------------------------------------------------------

    def round(
        self, until: Mapping[TopicPartition, int] | None = None, leave_out: Collection[str] = ()
    ) -> list[TopicProgress]:
        """Read once what is new in all topics, up to `until` or the end, and land it."""
        began = time.monotonic()
        topics = [kept for name, kept in self._kept.items() if name not in leave_out and name not in self._stopped]
        ends, results = (until, []) if until is not None else self._ends(topics)
        plans, failures = self._plan(topics, ends)
        results += failures
        reports = self._run(plans)
        for plan in plans:
            result = self._land(plan, reports.get(plan.kept.settings.topic, []))
            result.seconds = time.monotonic() - began
            results.append(result)
        for result in results:
            if result.rows or result.error or result.dead_letters:
                self._report(result)
        return results

    def _ends(self, topics: Sequence[KeptTopic]) -> tuple[dict[TopicPartition, int], list[TopicProgress]]:
        """Where logs end. A partition that nobody leads is left out and told of: it must not hold all others up."""
        places = [TopicPartition(kept.settings.topic, p) for kept in topics for p in kept.settings.partitions]
        if not places:
            return {}, []
        self.cluster.refresh({place.topic for place in places})
        led: list[TopicPartition] = []
        failures: dict[str, TopicProgress] = {}
        for place in places:
            try:
                self.cluster.metadata.leader(place)
                led.append(place)
            except KafkaError as error:
                failures[place.topic] = TopicProgress(topic=place.topic, error=error.message)
        return latest(self.cluster, led, Isolation.READ_COMMITTED), list(failures.values())

    def _plan(
        self, topics: Sequence[KeptTopic], ends: Mapping[TopicPartition, int]
    ) -> tuple[list[_Plan], list[TopicProgress]]:
        plans: list[_Plan] = []
        failures: list[TopicProgress] = []
        for kept in topics:
            topic = kept.settings.topic
            try:
                starts = kept.open()
                waiting = {
                    place: end
                    for place, end in ends.items()
                    if place.topic == topic and end > starts.get(place.partition, end)
                }
                if waiting:
                    plans.append(self._plan_topic(kept, starts, waiting))
            except (ForeignTable, KafkaError, ClientError, OSError, DeltaError) as error:
                failures.append(TopicProgress(topic=topic, error=str(error)))
        return plans, failures

    def _plan_topic(self, kept: KeptTopic, starts: dict[int, int], waiting: dict[TopicPartition, int]) -> _Plan:
        first = earliest(self.cluster, waiting)
        begin = {place: starts[place.partition] for place in waiting}
        is_new = all(kept.table.stored(partition) is None for partition in kept.settings.partitions)
        for place, offset in first.items():
            if offset > begin[place] and is_new:
                begin[place] = offset  # nothing was landed yet: the table begins where the log does
            elif offset > begin[place]:
                self._gap(place, begin[place], min(offset, waiting[place]))
        limited = share(begin, waiting, self.settings.max_offsets_per_trigger)
        ranges = [
            OffsetRange(*place, max(begin[place], min(first[place], limited[place])), limited[place])
            for place in sorted(limited)
        ]
        lag = sum(waiting[place] - limited[place] for place in waiting)
        begins = Begins(
            {piece.partition: piece.start for piece in ranges},
            {piece.partition: kept.table.stored(piece.partition) for piece in ranges},
            {piece.partition: kept.dead.stored(piece.partition) for piece in ranges},
        )
        return _Plan(kept, begins, ranges, lag)

    def _gap(self, place: TopicPartition, start: int, end: int) -> None:
        lost = f"offsets {start} to {end - 1} of {place} were removed by retention before they were landed"
        if not self.settings.allow_gaps:
            raise ClientError(f"{lost}. Start with --allow-gaps to go on without them")
        log.warning("%s; going on without them", lost)

    def _run(self, plans: Sequence[_Plan]) -> dict[str, list[TaskReport]]:
        """Run the tasks of all topics in one job, and those again whose topics got new columns by it."""
        specs = [
            plan.kept.spec(self.settings.bootstrap, plan.begins, task, settled=False)
            for plan in plans
            for task in self._deal(plan)
        ]
        reports: dict[str, list[TaskReport]] = {}
        again: list[TaskSpec] = []
        by_topic = {plan.kept.settings.topic: plan for plan in plans}
        for report in self._job(specs):
            reports.setdefault(report.topic, []).append(report)
        for topic, found in reports.items():
            growing = [report for report in found if report.unknown is not None]
            if growing:
                plan = by_topic[topic]
                try:
                    plan.kept.grow(growing)
                except (ForeignTable, OSError, DeltaError) as error:
                    found.append(TaskReport(topic, [], error=f"the table could not be given new columns: {error}"))
                    continue
                for report in growing:
                    ranges = [OffsetRange(topic, *piece) for piece in report.ranges]
                    again.append(plan.kept.spec(self.settings.bootstrap, plan.begins, ranges, settled=True))
        for report in self._job(again):
            reports[report.topic].append(report)
        return reports

    def _deal(self, plan: _Plan) -> list[list[OffsetRange]]:
        large = sum(piece.size for piece in plan.ranges) > OFFSETS_PER_TASK
        return deal(plan.ranges, self._parallelism if large else 0)

    def _job(self, specs: Sequence[TaskSpec]) -> list[TaskReport]:
        if not specs:
            return []
        encoded = [msgspec.json.encode(spec) for spec in specs]
        answers = self.spark.sparkContext.parallelize(encoded, len(encoded)).map(run_task).collect()
        return [msgspec.json.decode(answer, type=TaskReport) for answer in answers]

    def _land(self, plan: _Plan, reports: Sequence[TaskReport]) -> TopicProgress:
        topic = plan.kept.settings.topic
        error = next((report.error for report in reports if report.error), None)
        try:
            landed = self.commit(plan.kept, plan.begins, reports)
        except (PositionMoved, ForeignTable, OSError, DeltaError) as failure:
            return TopicProgress(topic=topic, lag=plan.lag, error=str(failure))
        stopped = stopped_by(reports, {**plan.begins.offsets, **(landed.positions if landed is not None else {})})
        if stopped is not None and error is None:
            self._stopped[topic] = plan.kept.settings
            error = f"{stopped}. table.on.error is stop: fix or skip the record, then start again"
        progress = TopicProgress(topic=topic, lag=plan.lag, error=error)
        if landed is not None:
            progress.rows, progress.value_bytes, progress.files = landed.rows, landed.value_bytes, landed.files
            progress.dead_letters, progress.rescued = landed.dead_letters, landed.rescued
            progress.version = landed.version
            short = sum(piece.end for piece in plan.ranges) - sum(
                landed.positions.get(piece.partition, piece.start) for piece in plan.ranges
            )
            progress.lag += max(short, 0)
        return progress

    def commit(self, kept: KeptTopic, begins: Begins, reports: Sequence[TaskReport]) -> Landed | None:
        """Commit to the table, then tell the consumer group; the second is for people and may fail."""
        landed = kept.commit(begins, reports)
        if landed is not None:
            places = {TopicPartition(kept.settings.topic, p): at for p, at in landed.positions.items()}
            try:
                commit_offsets(self.cluster, GROUP, places)
            except (KafkaError, ClientError) as error:
                log.warning("the position of %s was not written to group %s: %s", kept.settings.topic, GROUP, error)
        return landed
