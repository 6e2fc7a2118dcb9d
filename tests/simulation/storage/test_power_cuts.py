"""Random histories of logs on a disk that forgets, and proof that they would notice if storage broke its promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chronik.storage import log_cuts, manager, recovery
from chronik.storage.batch_walk import walk
from chronik.storage.checkpointing import Checkpointer
from chronik.storage.files import File
from chronik.storage.group_commit import SyncWork
from chronik.storage.log_state import LogState
from chronik.storage.log_syncs import LogSyncs
from chronik.storage.segment import Segment
from harness.simulated_disk import PowerCut
from harness.storage_histories import History

SEEDS = 120
STEPS = 80
LONG_SEEDS = 5000


@pytest.mark.parametrize("start", range(0, SEEDS, 20))
def test_acknowledged_records_survive_power_cuts_and_nothing_is_there_twice(start: int) -> None:
    for seed in range(start, start + 20):
        _run(seed)


def test_a_truncated_batch_never_comes_back_among_new_ones() -> None:
    for seed in range(40):
        _run(seed, overwriting=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_acknowledged_records_survive_many_more_power_cuts() -> None:
    for seed in range(10_000, 10_000 + LONG_SEEDS):
        _run(seed)
        _run(seed, overwriting=True)


def _run(seed: int, *, overwriting: bool = False) -> None:
    try:
        History(seed, overwriting=overwriting).run(STEPS)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise AssertionError(f"seed {seed}: {error!r}") from error


# --- planted bugs ------------------------------------------------------------------------------------------------


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "synced_offset", property(lambda log: log.end_offset))


def forget_to_sync_directories(patch: pytest.MonkeyPatch) -> None:
    def run(work: SyncWork, fs: object) -> None:
        work.directories.clear()
        for file in work.files:
            if not isinstance(file, str):
                file.sync()

    patch.setattr(SyncWork, "run", run)


def trust_the_length_of_the_file(patch: pytest.MonkeyPatch) -> None:
    def unchecked(file: File, start: int, end: int, *, check_crc: bool, **bounds: Any) -> Iterator[object]:
        return walk(file, start, end, check_crc=False, **bounds)

    patch.setattr(recovery, "walk", unchecked)


def sync_only_the_newest_segment(patch: pytest.MonkeyPatch) -> None:
    original = LogSyncs.begin_sync

    def begin(log: Any) -> SyncWork | None:
        work = original(log)
        if work is not None:
            work.files = work.files[-1:]
        return work

    patch.setattr(LogSyncs, "begin_sync", begin)


def write_recovery_points_before_the_syncs(patch: pytest.MonkeyPatch) -> None:
    async def no_wait(self: object, captures: object) -> object:
        return captures

    async def checkpoint(history: History) -> None:
        assert history.manager is not None
        await history.manager._checkpointer.run()

    patch.setattr(Checkpointer, "_wait_for_syncs", no_wait)
    patch.setattr(History, "_do_checkpoint", checkpoint)


def keep_the_recovery_point_when_truncating(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpointer, "_lower_recovery_point", lambda self, log, offset: None)


def write_over_truncated_batches(patch: pytest.MonkeyPatch) -> None:
    def same_file(log: Any, segment: Segment, offset: int, position: int) -> None:
        log._dirty_files.extend(segment.cut(offset, position, log.services.fs))

    patch.setattr(log_cuts.LogCuts, "_begin_anew", same_file)


def keep_segments_behind_a_lost_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery._Recovery, "_drop_after", lambda self, index: None)


def keep_snapshots_of_lost_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_remove_snapshots", lambda *arguments: None)


def count_recovered_records_as_synced_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manager, "sync_paths", lambda fs, paths: None)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], int]] = [
    (acknowledge_before_the_sync, 0),
    (forget_to_sync_directories, 0),
    (trust_the_length_of_the_file, 10),
    (sync_only_the_newest_segment, 1),
    (write_recovery_points_before_the_syncs, 17),
    (keep_the_recovery_point_when_truncating, 1),
    (write_over_truncated_batches, 133),
    (keep_segments_behind_a_lost_end, 0),
    (keep_snapshots_of_lost_records, 25),
    (count_recovered_records_as_synced_without_a_sync, 6),
]
"""A bug, and a seed whose history finds it."""

SEEDS_TRIED = 40
"""A change in the number of disk operations moves the power cuts: then one of the next seeds finds the bug."""


@pytest.mark.parametrize(("plant", "seed"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwriting = plant is write_over_truncated_batches
    plant(monkeypatch)
    for tried in range(seed, seed + SEEDS_TRIED):
        try:
            History(tried, overwriting=overwriting).run(STEPS)
        except (Exception, PowerCut):
            monkeypatch.undo()
            History(tried, overwriting=overwriting).run(STEPS)  # without the bug this history is a good one
            return
    pytest.fail(f"no history of the seeds {seed} to {seed + SEEDS_TRIED - 1} noticed the bug")
