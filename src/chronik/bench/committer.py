"""The worker that commits offsets: one member in a group of its own, one commit after the other."""

from __future__ import annotations

import time

from chronik.bench.joining import connect_member, join_together, leave
from chronik.bench.specs import CommitSpec
from chronik.bench.tally import Tally
from chronik.bench.window import Window
from chronik.client.cluster import Cluster
from chronik.client.errors import ConnectionFailed, error_for_code
from chronik.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

NEWEST_WITH_NAMES = 9
FAILED_PAUSE_S = 0.05


class Committer:
    def __init__(self, spec: CommitSpec, cluster: Cluster) -> None:
        self._spec = spec
        self._cluster = cluster
        self._member = connect_member(cluster, spec.group)
        join_together([self._member])
        partitions = len(cluster.topic(spec.topic).partitions)
        self._partition = spec.number % partitions

    def run(self, window: Window) -> Tally:
        tally = window.tally
        offset = 0
        while window.running(began := time.monotonic_ns()):
            offset += 1
            try:
                answer = self._member.connection.call(
                    self._request(offset), OffsetCommitResponse, newest=NEWEST_WITH_NAMES
                )
            except ConnectionFailed as error:
                tally.failed(type(error).__name__)
                time.sleep(FAILED_PAUSE_S)
                self._member = connect_member(self._cluster, self._spec.group)
                join_together([self._member])
                continue
            now = time.monotonic_ns()
            code = answer.topics[0].partitions[0].error_code
            if code:
                tally.failed(error_for_code(code, "committing").code.name)
                time.sleep(FAILED_PAUSE_S)
                continue
            window.progress.messages += 1
            if window.measuring(now):
                tally.messages += 1
                tally.operations += 1
                tally.latency.record(now - began)
        return window.close()

    def close(self) -> None:
        leave([self._member])

    def _request(self, offset: int) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(partition_index=self._partition, committed_offset=offset)
        return OffsetCommitRequest(
            group_id=self._spec.group,
            generation_id_or_member_epoch=self._member.generation,
            member_id=self._member.member_id,
            topics=[OffsetCommitRequestTopic(name=self._spec.topic, partitions=[partition])],
        )
