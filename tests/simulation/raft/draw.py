"""What one seed is like: the size of its group, its limits, and which faults strike how often.

Each seed switches a random subset of the faults on, at random rates. A run in which everything fails all the time gets
nowhere interesting; a swarm of runs that each fail in their own way reaches states that no single mix would.
"""

from __future__ import annotations

import random
from typing import TypeVar

import msgspec

from chronik.raft.settings import RaftSettings

TICK = 10
"""Units of simulated time per tick of a node's clock."""

Value = TypeVar("Value", int, float)


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are chances per tick of simulated time, unless they are about a message or a write."""

    raft: RaftSettings
    ticks: int
    voters: int
    joiners: int
    directories_known: bool
    clock_skew: float
    """The clocks of the nodes run up to (1 + clock_skew) times too fast or too slow."""
    clock_jump_rate: float
    pause_rate: float

    latency_max: int
    drop_rate: float
    duplicate_rate: float
    partition_rate: float
    heal_rate: float

    crash_rate: float
    power_cut_share: float
    restart_rate: float
    write_latency_max: int
    torn_write_rate: float
    failed_sync_rate: float
    full_disk_rate: float
    wipe_rate: float
    slow_nodes: int

    proposal_rate: float
    batch_max: int
    read_rate: float
    change_rate: float
    transfer_rate: float
    snapshot_entries: int
    retained_entries: int
    segment_bytes: int


def draw(rng: random.Random) -> Conditions:
    """The conditions of one seed."""

    def sometimes(chance: float, *rates: Value) -> Value:
        return rng.choice(rates) if rng.random() < chance else type(rates[0])(0)

    careful = rng.random() < 0.6
    append_entries, inflight_messages = rng.choice(((1, 1), (1, 4), (4, 4), (64, 1), (64, 16)))
    proposal_rate, batch_max = rng.choice(((0.1, 1), (0.5, 1), (1.0, 1), (0.3, 3), (0.1, 10)))
    election_ticks = rng.choice((4, 6, 10))
    raft = RaftSettings(
        election_ticks=election_ticks,
        heartbeat_ticks=rng.choice((1, 2, max(1, election_ticks // 3))),
        pre_vote=careful or rng.random() < 0.5,
        check_quorum=careful or rng.random() < 0.5,
        append_entries_max=append_entries,
        append_bytes_max=rng.choice((64, 1024, 65536)),
        inflight_messages_max=inflight_messages,
        inflight_bytes_max=rng.choice((256, 4096, 1 << 20)),
        uncommitted_bytes_max=rng.choice((2048, 1 << 20)),
        committed_entries_max=rng.choice((1, 8, 1024)),
    )
    return Conditions(
        raft=raft,
        ticks=rng.choice((150, 300, 500)),
        voters=rng.choice((1, 2, 3, 3, 3, 4, 5, 5)),
        joiners=rng.choice((0, 1, 2)),
        directories_known=rng.random() < 0.5,
        clock_skew=sometimes(0.6, 0.1, 0.5, 2.0),
        clock_jump_rate=sometimes(0.2, 0.005, 0.02),
        pause_rate=sometimes(0.3, 0.005, 0.02),
        latency_max=rng.choice((3, 8, 25, 60)),
        drop_rate=sometimes(0.6, 0.01, 0.1, 0.3),
        duplicate_rate=sometimes(0.4, 0.05, 0.2),
        partition_rate=sometimes(0.6, 0.005, 0.02, 0.05),
        heal_rate=rng.choice((0.02, 0.05)),
        crash_rate=sometimes(0.6, 0.005, 0.02, 0.05),
        power_cut_share=rng.choice((0.0, 0.5, 1.0)),
        restart_rate=rng.choice((0.02, 0.1)),
        write_latency_max=rng.choice((1, 5, 20)),
        torn_write_rate=sometimes(0.3, 0.005, 0.02),
        failed_sync_rate=sometimes(0.2, 0.005),
        full_disk_rate=sometimes(0.2, 0.005),
        wipe_rate=sometimes(0.35, 0.01, 0.05),
        slow_nodes=sometimes(0.3, 1, 2),
        proposal_rate=proposal_rate,
        batch_max=batch_max,
        read_rate=sometimes(0.6, 0.1, 0.5, 1.0),
        change_rate=sometimes(0.5, 0.02, 0.1, 0.3),
        transfer_rate=sometimes(0.3, 0.01, 0.03),
        snapshot_entries=rng.choice((5, 20, 60, 1000)),
        retained_entries=rng.choice((0, 3, 20)),
        segment_bytes=rng.choice((512, 4096)),
    )
