"""What the loop has done since the start, for GetLoad."""

from draftwood_verifier.record import StepRecord


class LoadCounters:
    """A step observer; every count is over all requests, counted as in a request's usage."""

    def __init__(self) -> None:
        self.first_tokens = 0
        self.rounds = 0
        self.speculative_rounds = 0
        self.proposed_nodes = 0
        self.accepted_nodes = 0
        self.last_step_nodes = 0  # of the last step that decoded
        self.last_step_requests = 0

    def step_done(self, record: StepRecord) -> None:
        decoded = [commit for commit in record.commits if commit.round > 0]
        self.first_tokens += len(record.commits) - len(decoded)
        if not decoded:
            return
        nodes = sum(commit.nodes_verified for commit in decoded)
        self.rounds += len(decoded)
        self.speculative_rounds += sum(commit.nodes_verified > 0 for commit in decoded)
        self.proposed_nodes += nodes
        self.accepted_nodes += sum(len(commit.tokens) - 1 for commit in decoded)
        self.last_step_nodes, self.last_step_requests = nodes, len(decoded)
