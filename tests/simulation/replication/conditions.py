"""What one seed is like: the size of its cluster, its pace, and which faults strike how often.

Each seed switches a random subset of the faults on, at random rates: a run in which everything fails all the time gets
nowhere interesting, a swarm of runs that each fail in their own way reaches states that no single mix would.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

SLOW_READS_FROM = 10_000  # seeds from here on have slow reads; those below it were drawn before there were any


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are events per simulated second; times are seconds."""

    nodes: int
    partitions: int
    min_isr: int
    durability: str
    seconds: float
    lag_limit_s: float
    isr_timeout_s: float

    latency_s: float
    slow_latency_s: float
    slow_share: float
    reset_rate: float
    cut_rate: float
    cut_s: float
    one_way_share: float
    cuts_delay: bool
    sync_s: float
    slow_sync_share: float

    crash_rate: float
    power_cut_share: float
    wipe_share: float
    down_s: float
    pause_rate: float
    pause_s: float
    move_rate: float
    reassign_rate: float
    all_crash_rate: float
    checkpoint_rate: float

    producers: int
    produce_rate: float
    acks_one_share: float
    astray_share: float
    consume_rate: float

    slow_read_share: float = 0.0
    slow_read_s: float = 0.0


def draw(rng: random.Random) -> Conditions:
    """The conditions of one seed."""

    def sometimes(chance: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < chance else 0.0

    nodes = rng.choice((2, 3, 3, 3, 4))
    durability = rng.choice(("fsync", "fsync", "fsync", "os"))
    return Conditions(
        nodes=nodes,
        partitions=rng.choice((1, 1, 2, 3)),
        min_isr=rng.choice((1, 1, 2)),
        durability=durability,
        seconds=rng.choice((8.0, 12.0, 20.0)),
        lag_limit_s=rng.choice((0.6, 1.5, 4.0)),
        isr_timeout_s=rng.choice((0.2, 0.8, 3.0)),
        latency_s=rng.choice((0.0005, 0.003, 0.01)),
        slow_latency_s=rng.choice((0.05, 0.3, 1.2)),
        slow_share=sometimes(0.5, 0.01, 0.05, 0.2),
        reset_rate=sometimes(0.4, 0.2, 1.0),
        cut_rate=sometimes(0.6, 0.1, 0.3, 0.8),
        cut_s=rng.choice((0.3, 1.0, 3.0)),
        one_way_share=rng.choice((0.0, 0.5, 1.0)),
        cuts_delay=rng.random() < 0.5,
        sync_s=rng.choice((0.001, 0.004, 0.03)),
        slow_sync_share=sometimes(0.4, 0.02, 0.1, 0.4),
        crash_rate=sometimes(0.7, 0.05, 0.15, 0.4),
        power_cut_share=rng.choice((0.0, 0.5, 1.0)) if durability == "fsync" else 0.0,
        wipe_share=sometimes(0.3, 0.3, 0.8),
        down_s=rng.choice((0.1, 0.6, 2.5)),
        pause_rate=sometimes(0.5, 0.05, 0.2, 0.5),
        pause_s=rng.choice((0.4, 1.8, 3.5)),
        move_rate=sometimes(0.5, 0.1, 0.5, 1.5),
        reassign_rate=sometimes(0.3, 0.2, 0.8),
        all_crash_rate=sometimes(0.2, 0.05),
        checkpoint_rate=rng.choice((0.2, 2.0)),
        producers=rng.choice((1, 2, 4)),
        produce_rate=rng.choice((3.0, 12.0, 40.0)),
        acks_one_share=sometimes(0.6, 0.2, 0.7),
        astray_share=rng.choice((0.05, 0.2, 0.6)),
        consume_rate=rng.choice((1.0, 5.0)),
    )


OUT_OF_TOUCH: Mapping[str, Any] = {
    "lag_limit_s": 4.0,
    "cut_rate": 3.0,
    "cut_s": 1.0,
    "one_way_share": 1.0,
    "cuts_delay": True,
    "move_rate": 1.0,
    "produce_rate": 40.0,
    "acks_one_share": 0.7,
}
"""Leaders change, and followers that do not hear of it are still answered: what a slow read meets on its way."""


def slow_reads(seed: int) -> Mapping[str, Any]:
    """How often the reads of a seed wait for the disk, and how long. Drawn apart: the rest of a seed stays as it is."""
    if seed < SLOW_READS_FROM:
        return {}
    rng = random.Random(f"slow reads of seed {seed}")
    return {
        **(OUT_OF_TOUCH if rng.random() < 0.5 else {}),
        "slow_read_share": rng.choice((0.02, 0.2, 0.7)),
        "slow_read_s": rng.choice((0.003, 0.03, 0.3, 1.2)),
    }
