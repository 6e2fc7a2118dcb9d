"""What happens to a simulated group from outside: faults, clients, operators. All of it follows from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.raft.errors import ChangeRefused, NotLeader, ProposalDropped, TransferRefused
from chronik.raft.types import UNKNOWN_DIRECTORY, ChangeKind, Configuration, ConfigurationChange, Member
from simulation.raft.draw import TICK
from simulation.raft.node import SimulatedNode

if TYPE_CHECKING:
    from simulation.raft.world import World

LEADER_SHARE = 0.4
"""Share of the faults that are aimed at a leader."""
ALL_AT_ONCE = 0.05
"""Share of the crashes that take every node down."""


class Chaos:
    """Acts once per tick."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._stopped = False
        self._proposed = 0
        self._reads = 0
        self._probe = b""
        self._probed_at = 0

    def stop(self) -> None:
        self._stopped = True

    def step(self) -> None:
        if self._stopped:
            return
        self._world.at(TICK, self.step)
        self._network()
        self._machines()
        self._disks()
        self._clients()
        self._operators()

    def _chance(self, rate: float) -> bool:
        return rate > 0 and self._rng.random() < rate

    def _any_up(self) -> SimulatedNode | None:
        """A node to strike: often a leader, where it hurts."""
        up = [node for node in self._world.nodes.values() if node.core is not None]
        leaders = [node for node in up if node.is_leader]
        if leaders and self._rng.random() < LEADER_SHARE:
            return self._rng.choice(leaders)
        return self._rng.choice(up) if up else None

    def _network(self) -> None:
        conditions, network = self._world.conditions, self._world.network
        if self._chance(conditions.partition_rate):
            victim = self._any_up() or self._rng.choice(list(self._world.nodes.values()))
            self._world.trace(f"partition: {network.partition(victim.node_id)}")
            self._world.counts["partitions"] += 1
        elif self._chance(conditions.heal_rate):
            network.heal()

    def _machines(self) -> None:
        world, conditions = self._world, self._world.conditions
        for node in world.nodes.values():
            if node.core is None and node.incarnation and self._chance(conditions.restart_rate):
                node.start()
        if self._chance(conditions.crash_rate):
            everybody = self._chance(ALL_AT_ONCE)
            victim = self._any_up()
            for node in world.nodes.values():
                if node.core is not None and (everybody or node is victim):
                    node.crash(power_cut=self._chance(conditions.power_cut_share))
                    world.counts["crashes"] += 1
        if self._chance(conditions.pause_rate) and (struck := self._any_up()) and not struck.paused:
            self._pause(struck)
        if self._chance(conditions.clock_jump_rate) and (struck := self._any_up()):
            for _ in range(self._rng.randint(2, 3 * conditions.raft.election_ticks)):
                struck.tick()
        if self._chance(conditions.wipe_rate):
            node = self._rng.choice(list(world.nodes.values()))
            if self._may_wipe(node):
                node.wipe()
                world.counts["wipes"] += 1

    def _pause(self, node: SimulatedNode) -> None:
        node.paused = True
        incarnation = node.incarnation
        self._world.counts["pauses"] += 1

        def resume() -> None:
            if node.incarnation == incarnation:
                # Clients may be served before the news of the others are read.
                node.paused = False
                self._read(node)
                node.resume()

        self._world.at(self._rng.randint(1, 6 * self._world.conditions.raft.election_ticks) * TICK, resume)

    def _disks(self) -> None:
        conditions = self._world.conditions
        if self._chance(conditions.torn_write_rate) and (node := self._any_up()):
            node.disk.crash_at = node.disk.operations + self._rng.randint(1, 6)
        if self._chance(conditions.failed_sync_rate) and (node := self._any_up()):
            node.disk.fail.add("sync")
        if self._chance(conditions.full_disk_rate) and (node := self._any_up()):
            node.disk.free_bytes = self._rng.randint(0, 200)
        for node in self._world.nodes.values():
            if node.disk.free_bytes is not None and self._chance(0.1):
                node.disk.free_bytes = None

    # --- membership -------------------------------------------------------------------------------------------------

    def _intact(self, configuration: Configuration, without: SimulatedNode | None = None) -> int:
        """How many voters of `configuration` still have the data folder that it means."""
        return sum(
            1
            for member in configuration.voters.values()
            if (node := self._world.nodes[member.node_id]) is not without
            and (
                member.directory_id == node.directory_id
                or (member.directory_id == UNKNOWN_DIRECTORY and node.directory_id)
                or not node.incarnation
            )
        )

    def _may_wipe(self, node: SimulatedNode) -> bool:
        """Losing more folders than a group can bear, or one whose id not everybody knows yet, proves nothing."""
        founder = node.bootstrap.voters.get(node.node_id)
        alone = len(node.bootstrap.voters) == 1 and founder is not None and founder.directory_id == UNKNOWN_DIRECTORY
        if not node.directory_id or alone:
            # Emptied and started again as a group of one, it would be one: another group.
            return False
        for other in self._world.nodes.values():
            for configuration in other.known_configurations():
                member = configuration.voters.get(node.node_id)
                if member is None:
                    continue
                if member.directory_id == UNKNOWN_DIRECTORY:
                    return False
                if self._intact(configuration, node) <= len(configuration.voters) // 2:
                    return False
        known = [c for other in self._world.nodes.values() if other is not node for c in other.known_configurations()]
        return any(c.voters or c.observers for c in known)

    def _operators(self) -> None:
        world, conditions = self._world, self._world.conditions
        leaders = [node for node in world.nodes.values() if node.is_leader and not node.paused]
        for node in leaders:
            if self._chance(conditions.change_rate):
                self._change(node)
            if node.is_leader and self._chance(conditions.transfer_rate):
                target = self._rng.choice(list(world.nodes))
                try:
                    assert node.core is not None
                    node.core.transfer(target)
                    world.counts["transfers"] += 1
                except (TransferRefused, NotLeader):
                    continue
                node.pump()

    def _change(self, leader: SimulatedNode) -> None:
        core = leader.core
        assert core is not None
        configuration = core.configuration
        changes = [change for change in self._possible_changes(configuration) if self._is_bearable(leader, change)]
        if not changes:
            return
        change = self._rng.choice(changes)
        try:
            core.propose_change(change)
        except (ChangeRefused, ProposalDropped):
            return
        self._world.counts["changes"] += 1
        self._world.trace(f"node {leader.node_id} proposes {change.kind.name} of node {change.member.node_id}")
        leader.pump()

    def _possible_changes(self, configuration: Configuration) -> list[ConfigurationChange]:
        changes = []
        for node in self._world.nodes.values():
            member = Member(node.node_id, node.directory_id or UNKNOWN_DIRECTORY, f"host-{node.node_id}", 9192)
            voter = configuration.voters.get(node.node_id)
            if (
                voter is not None
                and node.directory_id
                and voter.directory_id
                not in (
                    UNKNOWN_DIRECTORY,
                    node.directory_id,
                )
            ):
                return [ConfigurationChange(ChangeKind.DEMOTE_VOTER, member)]
            if voter is not None:
                changes.append(ConfigurationChange(ChangeKind.REMOVE_VOTER, member))
                changes.append(ConfigurationChange(ChangeKind.DEMOTE_VOTER, member))
            elif node.directory_id:
                changes += [ConfigurationChange(ChangeKind.ADD_VOTER, member)] * 2
                if node.node_id in configuration.observers:
                    changes.append(ConfigurationChange(ChangeKind.REMOVE_OBSERVER, member))
                else:
                    changes.append(ConfigurationChange(ChangeKind.ADD_OBSERVER, member))
        return changes

    def _is_bearable(self, leader: SimulatedNode, change: ConfigurationChange) -> bool:
        """Whether enough voters with their memory are left to commit the change."""
        assert leader.core is not None
        voters = dict(leader.core.configuration.voters)
        if change.kind in (ChangeKind.REMOVE_VOTER, ChangeKind.DEMOTE_VOTER):
            voters.pop(change.member.node_id, None)
        elif change.kind is ChangeKind.ADD_VOTER:
            voters[change.member.node_id] = change.member
        return bool(voters) and self._intact(Configuration(voters)) > len(voters) // 2

    # --- clients ----------------------------------------------------------------------------------------------------

    def _clients(self) -> None:
        world, conditions = self._world, self._world.conditions
        for node in world.nodes.values():
            if node.is_leader and self._chance(conditions.proposal_rate):
                size = self._rng.randint(1, conditions.batch_max)
                self._proposed += size
                node.propose([b"p%d" % number for number in range(self._proposed - size, self._proposed)])
            self._read(node)

    def _read(self, node: SimulatedNode) -> None:
        if node.is_leader and self._chance(self._world.conditions.read_rate):
            self._reads += 1
            self._world.show("read_taken", node, self._reads)
            node.read(self._reads)

    # --- recovery ---------------------------------------------------------------------------------------------------

    def leader(self) -> SimulatedNode | None:
        leaders = [node for node in self._world.nodes.values() if node.is_leader]
        return max(leaders, key=lambda node: node.core.term if node.core else 0, default=None)

    def is_recovered(self) -> bool:
        """Whether a write made after the faults is applied by every member. Makes that write, until it succeeds."""
        leader, world = self.leader(), self._world
        if leader is None or leader.core is None:
            return False
        self._stop_strangers()
        if not self._probe or world.now - self._probed_at > 4 * world.conditions.raft.election_ticks * TICK:
            self._probed_at = world.now
            self._probe = b"probe at %d" % world.now
            leader.propose([self._probe])
            return False
        members = (*leader.core.configuration.voters, *leader.core.configuration.observers)
        machines = [world.nodes[node_id].machine for node_id in members]
        return (
            self._probe in world.ledger.acknowledged.values()
            and leader.core.status().configuration_committed
            and all(machine.index == leader.core.last_index for machine in machines)
        )

    def _stop_strangers(self) -> None:
        """A node that was removed behind its back goes on asking for votes; an operator would have stopped it."""
        configurations = [step[1] for step in self._world.ledger.configurations[-1:]]
        configurations += [
            node.core.configuration for node in self._world.nodes.values() if node.core and node.is_leader
        ]
        members = {node_id for c in configurations for node_id in (*c.voters, *c.observers)}
        for node in self._world.nodes.values():
            if members and node.core is not None and node.node_id not in members:
                node.crash(power_cut=False)
