"""Leaving as a leader: another voter is asked to take over, so that the group need not wait for an election timeout."""

from __future__ import annotations

import structlog

from chronik.raft.driver_group import Group
from chronik.raft.errors import TransferRefused

log = structlog.get_logger()


async def hand_over(group: Group, until: float) -> None:
    """Asks the fittest voter that is connected to lead, and the next if that one goes away, too. Best effort.

    Returns when another node is known to lead: until then this one still votes and answers.
    """
    own, target = group.core.node_id, 0
    while group.out is None and group.loop.time() < until:
        if group.leads:
            connected = {peer.node_id for peer in group.transport.peers().values() if peer.connected}
            able = [peer for peer in group.core.status().peers.values() if peer.counts and peer.node_id in connected]
            if not able:
                log.info("leadership is not handed over: no other voter is connected")
                return
            if target not in connected:
                target = max(able, key=lambda peer: peer.match).node_id
                try:
                    group.core.transfer(target)
                except TransferRefused as error:
                    log.info("leadership is not handed over", reason=str(error))
                    return
                group.touch()
        elif not target or group.core.leader_id not in (0, own):
            break
        await group.change(until)
    if target and not group.leads and group.core.leader_id:
        log.info("handed leadership over", to=group.core.leader_id)
    elif target:
        log.info("nobody took leadership over in time", asked=target)
