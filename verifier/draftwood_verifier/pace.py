"""The loop's own timing, turned into what the budget knows of costs and waits."""

from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.record import StepRecord
from draftwood_verifier.scheduler import SegmentKind


class Pace:
    """A StepObserver that teaches the policy; steps with prompt chunks teach nothing, they are about other work."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._previous: StepRecord | None = None

    def step_done(self, record: StepRecord) -> None:
        previous, self._previous = self._previous, record
        if not _only_decodes(record):
            self._policy.saw_mixed_step(record.finished_at)
            return
        sequences = len(record.segments)
        step_s = record.finished_at - record.started_at
        nodes = sum(commit.nodes_verified for commit in record.commits)
        context = sum(segment.start for segment in record.segments) / sequences
        self._policy.costs.observe(sequences, nodes, context, step_s)
        if previous is None or not _only_decodes(previous):
            return
        waited = sum(commit.waited for commit in record.commits)
        if waited and any(commit.behind for commit in record.commits):
            return  # once, and it says nothing about the rounds to come
        if waited:
            tokens = sum(len(commit.tokens) for commit in record.commits)
            self._policy.grouping.saw(tokens, record.finished_at - previous.finished_at)
        if not _continues(previous, record):
            return
        gap_s = record.started_at - previous.finished_at
        if waited:
            self._policy.saw_wait(waited, gap_s, adaptive=record.decision is not None)
        else:
            self._policy.saw_pause(sequences, gap_s)
        if waited and record.decision is not None and record.decision.nodes:
            self._policy.saw_outcome(record.decision, sequences=sequences, tokens=tokens, seconds=gap_s + step_s)


def _only_decodes(record: StepRecord) -> bool:
    return all(segment.kind is SegmentKind.DECODE for segment in record.segments)


def _continues(previous: StepRecord, record: StepRecord) -> bool:
    """Whether the two steps were about the same sequences, so that the time between is about them too."""
    if len(previous.segments) != len(record.segments):
        return False
    before = {segment.sequence.session_id for segment in previous.segments}
    return all(segment.sequence.session_id in before for segment in record.segments)
