"""One session's part in one step, taken apart: what it waited for, what came of the draft, or why there was none."""

from dataclasses import dataclass
from enum import Enum

from draftwood_verifier.budget.policy import Decision
from draftwood_verifier.commit import Commit
from draftwood_verifier.record import StepRecord
from draftwood_verifier.sequence import DraftMode


class Outcome(Enum):
    USED = "used"  # the draft was asked for and came in time
    REROOTED = "rerooted"  # what was left of a draft for an earlier length
    UNUSED = "unused"  # came in time, and none of its nodes was looked at
    LATE = "late"  # had not come when the round ran
    PLAIN = "plain"  # nobody was asked


class PlainReason(Enum):
    OFF = "off"
    NO_DRAFTER = "no_drafter"
    UNDRAFTABLE = "undraftable"
    LATE_DRAFT = "late_draft"
    BUDGET = "budget"
    EMPTY_DRAFT = "empty_draft"
    END = "end"


# Not frozen: that takes twice as long to make.
@dataclass(kw_only=True, slots=True)
class Round:
    """`wait_s + verify_s + overhead_s` is the time from `started_at`, the session's last commit, to this one."""

    commit: Commit
    started_at: float
    ended_at: float
    wait_s: float
    verify_s: float
    overhead_s: float
    outcome: Outcome
    reason: PlainReason | None  # of a round without nodes
    accepted: int  # nodes, which is how deep the committed path goes

    @property
    def tokens(self) -> int:
        return len(self.commit.tokens)

    @property
    def depth(self) -> int:
        """Of the tree."""
        return max(self.commit.tree.depths)


def take_apart(commit: Commit, step: StepRecord, started_at: float) -> Round:
    """`started_at`: when the session's last commit was done."""
    reason = None if commit.nodes_verified else _plain_reason(commit, step)
    ready_at = min(max(started_at, _wait_end(commit, step)), step.started_at)
    return Round(
        commit=commit,
        started_at=started_at,
        ended_at=step.finished_at,
        wait_s=ready_at - started_at,
        verify_s=step.executed_at - step.started_at,
        overhead_s=(step.started_at - ready_at) + (step.finished_at - step.executed_at),
        outcome=_outcome(commit, reason),
        reason=reason,
        accepted=len(commit.nodes) - commit.nodes.count(0),
    )


def regret(decision: Decision, rounds: list[Round]) -> float:
    """Share of the tokens a second that plain decoding was predicted to give and the step's rounds did not give."""
    tokens = sum(done.tokens for done in rounds)
    seconds = max(done.ended_at - done.started_at for done in rounds)
    return max(0.0, 1 - tokens / (seconds * decision.plain_rate)) if seconds else 0.0


def _wait_end(commit: Commit, step: StepRecord) -> float:
    """When the draft was there or given up; 0 when nobody waited."""
    if not commit.waited:
        return 0.0
    return commit.answered_at or step.started_at


def _outcome(commit: Commit, reason: PlainReason | None) -> Outcome:
    if reason is None:
        return Outcome.USED if commit.answered_at else Outcome.REROOTED
    if commit.answered_at:
        return Outcome.UNUSED
    return Outcome.LATE if reason is PlainReason.LATE_DRAFT else Outcome.PLAIN


def _plain_reason(commit: Commit, step: StepRecord) -> PlainReason:
    sequence = commit.sequence
    if sequence.mode is DraftMode.OFF:
        return PlainReason.OFF
    if not commit.has_drafter:
        return PlainReason.UNDRAFTABLE if sequence.undraftable else PlainReason.NO_DRAFTER
    if commit.base_len + 1 >= sequence.length_limit:
        return PlainReason.END
    if sequence.adaptive and not commit.answered_at and not commit.waited:
        return PlainReason.BUDGET
    if not commit.answered_at:
        return PlainReason.LATE_DRAFT
    return PlainReason.BUDGET if step.decision is not None else PlainReason.EMPTY_DRAFT
