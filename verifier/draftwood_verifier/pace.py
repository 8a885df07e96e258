"""Steps that were, turned into what the budget knows of trees, costs and waits."""

from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.record import StepRecord
from draftwood_verifier.scheduler import SegmentKind


class Pace:
    """Teaches the policy; of steps with prompt chunks only what their trees were worth; the rest is other work."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._previous: StepRecord | None = None  # None: it did not only decode, or there was none

    def step_done(self, record: StepRecord) -> None:
        for commit in record.commits:
            if commit.draft is not None:
                sampled = commit.sequence.sampling.temperature > 0
                self._policy.calibration.observe(commit.draft, commit.tokens, sampled=sampled)
        if all(segment.kind is SegmentKind.DECODE for segment in record.segments):
            self._time(self._previous, record)
            self._previous = record
        else:
            self._policy.saw_mixed_step(record.finished_at)
            self._previous = None
        self._policy.look_ahead()

    def _time(self, previous: StepRecord | None, record: StepRecord) -> None:
        """What a step took that only decodes, and how long it came after one that did the same."""
        sequences = len(record.segments)
        step_s = record.finished_at - record.started_at
        nodes = waited = tokens = 0
        behind = False
        for commit in record.commits:
            nodes += commit.nodes_verified
            tokens += len(commit.tokens)
            waited += commit.waited
            behind = behind or commit.behind
        context = sum([segment.start for segment in record.segments]) / sequences
        self._policy.costs.observe(sequences, nodes, context, step_s)
        if previous is None or (waited and behind):
            return  # a drafter is behind once, and that says nothing about the rounds to come
        if waited:
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


def _continues(previous: StepRecord, record: StepRecord) -> bool:
    """Whether the two steps were about the same sequences, so that the time between is about them too."""
    if len(previous.segments) != len(record.segments):
        return False
    before = {segment.sequence.session_id for segment in previous.segments}
    return all(segment.sequence.session_id in before for segment in record.segments)
