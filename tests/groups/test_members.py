"""Real clients in groups on one node: subscribe, share, commit, leave, die, come back, resume."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from groups.conftest import StartMember, members_of_a_test
from groups.reading import all_read, expected_records, make_topic, wait_committed, write
from harness.clients.group_member import LIBRARIES
from harness.node_process import NodeProcess

PARTITIONS = 4
FIRST = 15
SECOND = 10
AT_ONCE = 4


@pytest.fixture(scope="module")
def lives(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """The life of a group for each client, several at once: they mostly wait."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            library: pool.submit(live, library, node.bootstrap, tmp_path_factory.mktemp("members"))
            for library in LIBRARIES
        }


@pytest.mark.parametrize("library", LIBRARIES)
def test_members_share_commit_leave_die_and_resume(library: str, lives: dict[str, Future[None]]) -> None:
    lives[library].result(110)


def live(library: str, bootstrap: str, directory: Path) -> None:
    """One group from its first member to its last."""
    group = topic = f"life-of-{library.replace('@', '-')}"
    make_topic(bootstrap, topic, PARTITIONS)
    write(bootstrap, topic, PARTITIONS, FIRST)
    with members_of_a_test(directory) as start_member:
        one = start_member(library, bootstrap, group, topic)
        one.wait_assigned(PARTITIONS)
        two = start_member(library, bootstrap, group, topic)
        two.wait_assigned(PARTITIONS // 2)
        one.wait_assigned(PARTITIONS // 2)
        assert not set(one.assigned or ()) & set(two.assigned or ())
        wait_committed(bootstrap, group, dict.fromkeys(range(PARTITIONS), FIRST))

        two.kill()
        one.wait_assigned(PARTITIONS)
        write(bootstrap, topic, PARTITIONS, SECOND)
        wait_committed(bootstrap, group, dict.fromkeys(range(PARTITIONS), FIRST + SECOND))
        one.leave()
        assert set(all_read([one, two])) == set(expected_records(PARTITIONS, 0, FIRST + SECOND))

        write(bootstrap, topic, PARTITIONS, 1)
        three = start_member(library, bootstrap, group, topic)
        wait_committed(bootstrap, group, dict.fromkeys(range(PARTITIONS), FIRST + SECOND + 1))
        three.leave()
        expected = expected_records(PARTITIONS, FIRST + SECOND, FIRST + SECOND + 1)
        assert sorted(set(three.records)) == expected, "it must go on where the group was"


@pytest.mark.parametrize("library", ["confluent-kafka", "confluent-kafka-consumer"])
def test_a_static_member_that_restarts_does_not_disturb_the_others(
    library: str, node: NodeProcess, start_member: StartMember, name: str
) -> None:
    make_topic(node.bootstrap, name, PARTITIONS)
    one = start_member(library, node.bootstrap, name, name, "first")
    one.wait_assigned(PARTITIONS)
    two = start_member(library, node.bootstrap, name, name, "second")
    two.wait_assigned(PARTITIONS // 2)
    one.wait_assigned(PARTITIONS // 2)
    mine, seen = list(two.assigned or ()), one.generations
    two.leave()  # static members do not leave for good when they close
    again = start_member(library, node.bootstrap, name, name, "second")
    again.wait_assigned(PARTITIONS // 2)
    assert again.assigned == mine
    assert one.generations == seen
