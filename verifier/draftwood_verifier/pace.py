"""Steps that were, turned into what the budget knows of trees, costs and waits."""

import math

from draftwood_verifier.budget.lessons import TAUGHT
from draftwood_verifier.budget.policy import MOST_ALIKE, Policy
from draftwood_verifier.commit import Commit
from draftwood_verifier.record import StepRecord
from draftwood_verifier.scheduler import Segment, SegmentKind

# Rounds of many requests are never all about the same ones: some end, others begin, and the drafter has to catch up
# with those. That is a part of every wait there; where it is most of one, it says nothing about the next.
_MOST_BEHIND = 0.25


class Pace:
    """Teaches the policy: of steps with prompts all but what decoding costs; waits leave out steps without decoding."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._previous: StepRecord | None = None  # that decoded
        # Since then, of steps that decoded nothing.
        self._aside_s, self._aside_rows = 0.0, 0

    def step_done(self, record: StepRecord) -> None:
        decoded = [segment for segment in record.segments if segment.kind is SegmentKind.DECODE]
        self._judge([commit for commit in record.commits if commit.draft is not None], record.number)
        if len(decoded) < len(record.segments):
            self._policy.saw_mixed_step(record.executed_at)
        if decoded:
            self._time(self._previous, record, decoded)
            self._previous, self._aside_s, self._aside_rows = record, 0.0, 0
        else:
            self._aside_s += record.finished_at - record.started_at
            self._aside_rows += sum([segment.rows for segment in record.segments])
        self._policy.look_ahead()

    def _judge(self, drafted: list[Commit], number: int) -> None:
        """What their trees were worth; of many, others in every step."""
        stride = math.ceil(len(drafted) / TAUGHT) or 1
        for commit in drafted[number % stride :: stride]:
            assert commit.draft is not None, "only rounds with a draft are judged"
            sampled = commit.sequence.sampling.temperature > 0
            self._policy.calibration.observe(commit.draft, commit.tokens, sampled=sampled)

    def _time(self, previous: StepRecord | None, record: StepRecord, decoded: list[Segment]) -> None:
        """What decoding took, and how long it came after the last."""
        sequences = len(decoded)
        nodes = waited = tokens = behind = 0
        for commit in record.commits:
            nodes += commit.nodes_verified
            tokens += len(commit.tokens) if commit.round else 0  # the first one is the prompt's
            waited += commit.waited
            behind += commit.waited and commit.behind
        context = sum([segment.start for segment in decoded]) / sequences
        step_s = self._decoding_s(record, decoded, nodes, context)
        if previous is None or behind > _MOST_BEHIND * waited:
            return
        # Plain decoding would have had this work beside its rows.
        aside_s = min(self._aside_s, self._policy.beside_s(self._aside_rows))
        gap_s = record.started_at - previous.finished_at - aside_s
        if waited:
            self._policy.grouping.saw(tokens, gap_s + step_s)
        if not _continues(previous, decoded):
            return
        if waited:
            self._policy.saw_wait(waited, gap_s, adaptive=record.decision is not None)
        else:
            self._policy.saw_pause(sequences, gap_s)
        if waited and record.decision is not None and record.decision.nodes:
            self._policy.saw_outcome(record.decision, sequences=sequences, tokens=tokens, seconds=gap_s + step_s)

    def _decoding_s(self, record: StepRecord, decoded: list[Segment], nodes: int, context: float) -> float:
        """Of a step that does nothing else this is what it took; prompts beside it take what decoding did not cost."""
        costs, step_s = self._policy.costs, record.finished_at - record.started_at
        rows = sum([segment.rows for segment in record.segments]) - sum([segment.rows for segment in decoded])
        if not rows:
            costs.observe(len(decoded), nodes, context, step_s)
            return step_s
        usual_s = costs.cost(len(decoded), nodes, context)
        self._policy.saw_rows_beside(rows, step_s - usual_s)
        return min(step_s, usual_s)


def _continues(previous: StepRecord, decoded: list[Segment]) -> bool:
    """Whether two steps were about the same sequences, or nearly, so that the time between is about them too."""
    before = {commit.sequence.session_id for commit in previous.commits}
    again = sum([segment.sequence.session_id in before for segment in decoded])
    return again >= MOST_ALIKE * max(len(before), len(decoded))
