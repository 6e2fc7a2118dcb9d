"""Leases, commit queues and waiting rooms by themselves."""

from __future__ import annotations

import math

import pytest

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.replication.commits import ABANDONED_LIMIT, CommitQueue
from chronik.replication.lease import Lease
from harness.replica_nodes import Clock


def test_a_lease_is_held_from_its_first_renewal_until_its_time() -> None:
    clock = Clock()
    lease = Lease(clock)
    assert not lease.held()
    lease.renew(clock.now + 1.5)
    assert lease.held() and lease.remaining_s() == 1.5
    clock.now += 1.5
    assert not lease.held() and lease.remaining_s() == 0


def test_an_answer_that_arrives_late_does_not_shorten_a_lease() -> None:
    clock = Clock()
    lease = Lease(clock)
    lease.renew(clock.now + 2)
    lease.renew(clock.now + 1)
    clock.now += 1.5
    assert lease.held()


def test_a_lease_that_is_given_back_is_not_held() -> None:
    clock = Clock()
    lease = Lease.permanent(clock)
    clock.now = 1e12
    assert lease.held() and lease.remaining_s() == math.inf
    lease.revoke()
    assert not lease.held()


def test_a_lease_tells_how_long_ago_it_lapsed_if_it_ever_was_held() -> None:
    clock = Clock()
    lease = Lease(clock)
    clock.now += 100
    assert lease.lapsed_for_s() == 0
    lease.renew(clock.now + 1)
    assert lease.lapsed_for_s() == 0
    clock.now += 3
    assert lease.lapsed_for_s() == 2
    lease.renew(clock.now + 1)
    assert lease.lapsed_for_s() == 0


async def test_a_refused_commit_fails_with_an_error_of_its_own() -> None:
    queue = CommitQueue()
    futures = [queue.add(offset) for offset in (1, 2, 5)]
    queue.reached(2, lambda: KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
    errors = [future.exception() for future in futures[:2]]
    assert errors[0] is not errors[1]
    assert not futures[2].done()
    queue.fail(lambda: KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    error = futures[2].exception()
    assert isinstance(error, KafkaError) and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(queue) == 0


async def test_commits_that_were_given_up_do_not_pile_up() -> None:
    queue = CommitQueue()
    kept = queue.add(10**9)
    for offset in range(10 * ABANDONED_LIMIT):
        queue.add(offset + 1).cancel()
    assert len(queue) <= 2 * ABANDONED_LIMIT
    queue.reached(10**9, None)
    assert kept.done() and kept.exception() is None


@pytest.mark.parametrize("offset", [0, 3])
async def test_what_is_reached_resolves_and_the_rest_waits(offset: int) -> None:
    queue = CommitQueue()
    now, later = queue.add(offset), queue.add(offset + 1)
    queue.reached(offset, None)
    assert now.done() and not later.done()


def test_a_node_that_is_alone_keeps_its_lease_through_a_stall() -> None:
    clock = Clock()
    alone = True
    lease = Lease(clock, alone=lambda: alone)
    assert not lease.held(), "not before its first renewal"
    lease.renew(clock.now + 1)
    clock.now += 100
    assert lease.held()
    alone = False
    assert not lease.held()
