"""Asking the controller, from any node, for what only it can do."""

from __future__ import annotations

from collections.abc import Sequence

from chronik.cluster.messages import ELECT_LEADERS, ElectRequest, decode_elect_reply, encode
from chronik.cluster.ports import Group, PeerLink
from chronik.protocol.errors import ErrorCode, KafkaError

ANSWER_MARGIN_S = 1.0  # for the way there and back, on top of what the controller may take


class ControllerClient:
    """Requests to whoever leads the Raft group now."""

    def __init__(self, group: Group, peers: PeerLink) -> None:
        self._group = group
        self._peers = peers

    async def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None, *, unclean: bool, timeout_s: float
    ) -> list[tuple[str, int, ErrorCode, str]]:
        """Elects preferred (or unclean) leaders of these partitions, or of all that need it. Raises KafkaError when the
        controller cannot be asked."""
        request = ElectRequest(unclean, None if partitions is None else list(partitions), timeout_s)
        controller = self._group.leader_id
        if not controller:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment; try again")
        try:
            answer = await self._peers.request(
                controller, ELECT_LEADERS, encode(request), timeout_s=timeout_s + ANSWER_MARGIN_S
            )
        except KafkaError:
            raise
        except Exception as error:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the controller (node {controller}) did not answer: {error}; try again"
            ) from error
        return [
            (topic, number, ErrorCode(code), message)
            for topic, number, code, message in decode_elect_reply(answer).outcomes
        ]
