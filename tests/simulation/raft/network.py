"""The simulated network: messages are late, out of order, doubled or lost, and links are cut one way or both."""

from __future__ import annotations

import random

from simulation.raft.draw import Conditions


class Network:
    """Who can be heard by whom, and when."""

    def __init__(self, rng: random.Random, conditions: Conditions, node_ids: list[int]) -> None:
        self._rng = rng
        self._conditions = conditions
        self._node_ids = node_ids
        self._cut: set[tuple[int, int]] = set()
        self._slow: set[int] = set(rng.sample(node_ids, min(conditions.slow_nodes, len(node_ids))))
        self.is_faulty = True

    def is_slow(self, node_id: int) -> bool:
        return self.is_faulty and node_id in self._slow

    def reaches(self, source: int, target: int) -> bool:
        return (source, target) not in self._cut

    def delays(self, source: int, target: int) -> list[int]:
        """When the copies of a message arrive, from now: none if it is lost."""
        rng, conditions = self._rng, self._conditions
        if not self.reaches(source, target):
            return []
        if not self.is_faulty:
            return [1]
        if rng.random() < conditions.drop_rate:
            return []
        copies = 2 if rng.random() < conditions.duplicate_rate else 1
        longest = conditions.latency_max * (5 if source in self._slow or target in self._slow else 1)
        return [1 + int(rng.random() * longest) for _ in range(copies)]

    def heal(self) -> None:
        self._cut = set()

    def partition(self, victim: int) -> str:
        """Cut some links, around `victim` in the kinds that have one; what was done, for the trace."""
        ids = self._node_ids
        kind = self._rng.choice(("split", "isolate", "one-way", "deaf", "mute", "ring"))
        others = self._rng.sample([node_id for node_id in ids if node_id != victim], len(ids) - 1)
        one, shuffled = victim, [victim, *others]
        self._cut = set()
        match kind:
            case "split":
                size = self._rng.randrange(1, len(ids)) if len(ids) > 1 else 0
                for left in shuffled[:size]:
                    for right in shuffled[size:]:
                        self._cut |= {(left, right), (right, left)}
            case "isolate":
                self._cut = {(one, other) for other in others} | {(other, one) for other in others}
            case "deaf":
                self._cut = {(other, one) for other in others}
            case "mute":
                self._cut = {(one, other) for other in others}
            case "one-way":
                pairs = [(a, b) for a in ids for b in ids if a != b]
                self._cut = set(self._rng.sample(pairs, self._rng.randint(0, len(pairs) // 2)))
            case "ring":
                size = len(ids)
                self._cut = {
                    (shuffled[a], shuffled[b])
                    for a in range(size)
                    for b in range(size)
                    if a != b and (a - b) % size not in (1, size - 1)
                }
        return f"{kind} {shuffled}"
