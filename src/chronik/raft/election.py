"""Elections: asking for votes, giving them, counting them (Raft §5.2, §5.4.1; pre-vote, leases: thesis §9.6, §4.2.3).

Rules
1. A node gives at most one vote per term, and sends it only after the vote is stored; so does a candidate with the
   vote for itself.
2. A vote goes only to a log that has everything the voter may have committed.
3. A vote is that of a data folder. The candidate names the folder it expects; a node with another folder never votes.
   If the candidate does not know the folder (first start), the node must be a voter in its own eyes.
4. A pre-vote binds nobody and moves no term: it asks "would you vote for me?".
5. A node that hears a leader ignores candidates, except when the leader itself asked for the election.

What happens after a won election is in `leadership.py`.
"""

from __future__ import annotations

from chronik.raft.configuration import is_voter
from chronik.raft.state import NodeState, Role
from chronik.raft.types import NO_NODE, UNKNOWN_DIRECTORY, VoteRequest, VoteResponse


class Election:
    """The voting side of a node, and, while it is a candidate, the count of its votes."""

    __slots__ = ("_state", "_votes")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._votes: dict[int, bool] = {}

    # --- as a candidate ---------------------------------------------------------------------------------------------

    def start(self, *, pre: bool, transfer: bool = False) -> None:
        """Stand for election; the votes are asked for, nothing is counted yet but the answer to one's own pre-vote."""
        state = self._state
        state.role = Role.PRE_CANDIDATE if pre else Role.CANDIDATE
        state.leader_id = NO_NODE
        state.restart_election_timer()
        self._votes = {}
        if pre:
            self._votes[state.node_id] = True
        else:
            state.enter_term(state.term + 1)
            state.vote = state.node_id
            state.vote_directory_id = state.directory_id
        term = state.term + 1 if pre else state.term
        # A request for a vote speaks for a term that must be stored first, or a restarted candidate could speak twice.
        outbox = state.messages if pre else state.durable_messages
        for voter in state.configuration.voters.values():
            if voter.node_id != state.node_id:
                outbox.append(
                    VoteRequest(
                        source=state.node_id,
                        target=voter.node_id,
                        term=term,
                        directory_id=state.directory_id,
                        target_directory_id=voter.directory_id,
                        last_index=state.log.last_index,
                        last_term=state.log.last_term,
                        pre=pre,
                        transfer=transfer,
                    )
                )

    def own_vote_stored(self) -> None:
        """The vote of this candidate for itself is on its disk, and counts from now on."""
        self._votes[self._state.node_id] = True

    def count(self, response: VoteResponse) -> None:
        """Take in an answer, unless it comes from somebody who has no vote in this configuration."""
        if is_voter(self._state.configuration, response.source, response.directory_id):
            self._votes.setdefault(response.source, response.granted)

    @property
    def is_won(self) -> bool:
        return self._has_majority(granted=True)

    @property
    def is_lost(self) -> bool:
        return self._has_majority(granted=False)

    def _has_majority(self, *, granted: bool) -> bool:
        state = self._state
        votes = sum(
            1
            for node_id in state.configuration.voters
            if self._votes.get(node_id) is granted and (node_id != state.node_id or state.counts_itself)
        )
        return votes > len(state.configuration.voters) // 2

    # --- as a voter -------------------------------------------------------------------------------------------------

    def ignores(self, request: VoteRequest) -> bool:
        """Rule 5: while a leader is heard, a candidate is somebody who cannot hear it, and no reason to unseat it."""
        state = self._state
        if request.transfer or not state.settings.check_quorum or state.leader_id == NO_NODE:
            return False
        return state.role is Role.LEADER or state.elapsed_ticks < state.settings.election_ticks

    def answer(self, request: VoteRequest) -> None:
        """Vote, or say why not by saying no. The term of the request has been entered already, if it is for real."""
        state = self._state
        granted = (
            self._is_addressed_to_me(request)
            and self._is_free(request)
            and state.log.is_up_to_date(request.last_index, request.last_term)
        )
        if granted and not request.pre:
            state.vote = request.source
            state.vote_directory_id = request.directory_id
            state.restart_election_timer()
        outbox = state.messages if request.pre else state.durable_messages
        outbox.append(
            VoteResponse(
                source=state.node_id,
                target=request.source,
                term=request.term if granted else state.term,
                directory_id=state.directory_id,
                granted=granted,
                pre=request.pre,
            )
        )

    def _is_addressed_to_me(self, request: VoteRequest) -> bool:
        state = self._state
        if request.target_directory_id != UNKNOWN_DIRECTORY:
            return request.target_directory_id == state.directory_id
        return is_voter(state.configuration, state.node_id, state.directory_id)

    def _is_free(self, request: VoteRequest) -> bool:
        state = self._state
        if request.pre:
            return request.term > state.term
        if request.term != state.term:
            return False
        if state.vote == NO_NODE:
            return state.leader_id == NO_NODE
        return state.vote == request.source and state.vote_directory_id == request.directory_id
