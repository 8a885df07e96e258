"""Which part of a round is told as the wait for its draft."""

import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.commit import Commit
from draftwood_verifier.record import StepRecord
from draftwood_verifier.round_reports import report_of
from draftwood_verifier.sequence import DraftMode, Sequence
from draftwood_wire.tree import EMPTY_TREE


def make_commit(*, waited: bool, asked_at: float, answered_at: float) -> Commit:
    sequence = Sequence(
        session_id=1,
        tokens=[1, 2],
        prompt_len=1,
        length_limit=9,
        stop_ids=frozenset(),
        sampling=SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0),
        mode=DraftMode.AUTO,
        node_limit=16,
    )
    return Commit(
        sequence=sequence,
        round=1,
        base_len=2,
        tokens=[3],
        rows=[0],
        cut=0,
        tree=EMPTY_TREE,
        draft=None,
        nodes=[0],
        has_drafter=True,
        asked_at=asked_at,
        answered_at=answered_at,
        waited=waited,
        behind=False,
        finish_reason=None,
    )


@pytest.mark.parametrize(
    ("waited", "asked_at", "answered_at", "wait_ms"),
    [
        (True, 10.0, 10.25, 250.0),  # the answer came, and lay there until the step
        (True, 10.0, 0.0, 500.0),  # no answer came in time
        (False, 4.0, 0.0, 0.0),  # the last ask was for an earlier round
        (False, 4.0, 4.25, 0.0),
        (False, 0.0, 0.0, 0.0),  # no drafter
    ],
)
def test_the_wait_of_a_round(waited: bool, asked_at: float, answered_at: float, wait_ms: float) -> None:
    commit = make_commit(waited=waited, asked_at=asked_at, answered_at=answered_at)
    record = StepRecord(
        number=1,
        started_at=10.5,
        executed_at=10.625,
        device_s=0.0,
        finished_at=10.75,
        segments=[],
        commits=[commit],
        decision=None,
    )
    report = report_of(commit, record)
    assert (report.draft_wait_ms, report.verify_ms) == (wait_ms, 125.0)
