"""Steps that were, turned into what the budget knows of trees, costs and waits."""

from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.record import StepRecord
from draftwood_verifier.scheduler import SegmentKind

# Rounds of many requests are never all about the same ones: some end, others begin, and the drafter has to catch up
# with those. That is a part of every wait there; where it is most of one, it says nothing about the next.
_MOST_ALIKE, _MOST_BEHIND = 0.75, 0.25


class Pace:
    """Teaches the policy; of steps with prompt chunks only what their trees were worth; the rest is other work."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._previous: StepRecord | None = None  # None: it did not only decode, or there was none
        # Since then, of steps that decoded nothing: waits leave room for them.
        self._aside_s, self._aside_rows = 0.0, 0

    def step_done(self, record: StepRecord) -> None:
        for commit in record.commits:
            if commit.draft is not None:
                sampled = commit.sequence.sampling.temperature > 0
                self._policy.calibration.observe(commit.draft, commit.tokens, sampled=sampled)
        kinds = {segment.kind for segment in record.segments}
        if kinds == {SegmentKind.DECODE}:
            self._time(self._previous, record)
            self._previous, self._aside_s, self._aside_rows = record, 0.0, 0
        else:
            self._policy.saw_mixed_step(record.finished_at)
            self._take_aside(record)
        self._policy.look_ahead()

    def _take_aside(self, record: StepRecord) -> None:
        """A step with other work, which decoding waited for."""
        step_s = record.finished_at - record.started_at
        decoded = [segment for segment in record.segments if segment.kind is SegmentKind.DECODE]
        rows = sum(segment.rows for segment in record.segments if segment.kind is not SegmentKind.DECODE)
        if decoded:
            self._previous = None
            nodes = sum(segment.rows - 1 for segment in decoded)
            context = sum(segment.start for segment in decoded) / len(decoded)
            self._policy.saw_rows_beside(rows, step_s - self._policy.costs.cost(len(decoded), nodes, context))
        else:
            self._aside_s += step_s
            self._aside_rows += rows

    def _time(self, previous: StepRecord | None, record: StepRecord) -> None:
        """What a step took that only decodes, and how long it came after one that did the same."""
        sequences = len(record.segments)
        step_s = record.finished_at - record.started_at
        nodes = waited = tokens = behind = 0
        for commit in record.commits:
            nodes += commit.nodes_verified
            tokens += len(commit.tokens)
            waited += commit.waited
            behind += commit.waited and commit.behind
        context = sum([segment.start for segment in record.segments]) / sequences
        self._policy.costs.observe(sequences, nodes, context, step_s)
        if previous is None or behind > _MOST_BEHIND * waited:
            return
        # Plain decoding would have had this work beside its rows.
        aside_s = min(self._aside_s, self._policy.beside_s(self._aside_rows))
        gap_s = record.started_at - previous.finished_at - aside_s
        if waited:
            self._policy.grouping.saw(tokens, gap_s + step_s)
        if not _continues(previous, record):
            return
        if waited:
            self._policy.saw_wait(waited, gap_s, adaptive=record.decision is not None)
        else:
            self._policy.saw_pause(sequences, gap_s)
        if waited and record.decision is not None and record.decision.nodes:
            self._policy.saw_outcome(record.decision, sequences=sequences, tokens=tokens, seconds=gap_s + step_s)


def _continues(previous: StepRecord, record: StepRecord) -> bool:
    """Whether the two steps were about the same sequences, or nearly, so that the time between is about them too."""
    before = {segment.sequence.session_id for segment in previous.segments}
    again = sum([segment.sequence.session_id in before for segment in record.segments])
    return again >= _MOST_ALIKE * max(len(previous.segments), len(record.segments))
