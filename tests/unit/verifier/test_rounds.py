"""How one session's part in a step is taken apart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.budget.policy import Decision
from draftwood_verifier.commit import Commit
from draftwood_verifier.record import StepRecord
from draftwood_verifier.sequence import DraftMode, Sequence
from draftwood_verifier.telemetry.rounds import Outcome, PlainReason, regret, take_apart
from draftwood_wire.tree import EMPTY_TREE, TokenTree

# Last commit at 10.0, draft there at 10.02, step from 10.03, executed at 10.08, done at 10.09.
STEP = StepRecord(
    number=1,
    started_at=10.03,
    executed_at=10.08,
    device_s=0.04,
    finished_at=10.09,
    segments=[],
    commits=[],
    decision=None,
)
TREE = TokenTree(
    token_ids=np.array([1, 2, 3], np.int32),
    parents=np.array([0, 0, 2], np.int32),
    log_probs=np.array([-1, -2, -3], np.float32),
)


def sequence(**fields: Any) -> Sequence:
    settings: dict[str, Any] = {
        "session_id": 1,
        "tokens": [1, 2],
        "prompt_len": 1,
        "length_limit": 100,
        "stop_ids": frozenset(),
        "sampling": SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
        "mode": DraftMode.TREE,
        "node_limit": 8,
    }
    return Sequence(**settings | fields)


def commit(**fields: Any) -> Commit:
    settings: dict[str, Any] = {
        "sequence": sequence(),
        "round": 1,
        "base_len": 2,
        "tokens": [2, 3, 9],
        "rows": [0, 2, 3],
        "cut": 0,
        "tree": TREE,
        "draft": None,
        "nodes": [0, 2, 3],
        "has_drafter": True,
        "waited": True,
        "behind": False,
        "asked_at": 9.99,
        "answered_at": 10.02,
        "finish_reason": None,
    }
    return Commit(**settings | fields)


PLAIN: dict[str, Any] = {"tree": EMPTY_TREE, "tokens": [2], "rows": [0], "nodes": [0]}


def test_the_three_times_add_up_and_the_nodes_are_counted() -> None:
    done = take_apart(commit(), STEP, 10.0)
    assert (done.wait_s, done.verify_s, done.overhead_s) == pytest.approx((0.02, 0.05, 0.02))
    assert done.wait_s + done.verify_s + done.overhead_s == pytest.approx(done.ended_at - done.started_at)
    assert (done.accepted, done.tokens, done.outcome, done.reason) == (2, 3, Outcome.USED, None)
    assert done.depth == 2


@pytest.mark.parametrize(
    ("answered_at", "waited", "started_at", "wait_s"),
    [
        (9.995, True, 10.03, 0.0),  # there before the last commit was through
        (0.0, False, 10.03, 0.0),  # nobody waited
        (0.0, True, 10.25, 0.25),  # waited for until its time was up
    ],
)
def test_only_what_was_waited_for_is_waiting(
    answered_at: float, waited: bool, started_at: float, wait_s: float
) -> None:
    step = replace(STEP, started_at=started_at, executed_at=started_at + 0.05, finished_at=started_at + 0.06)
    done = take_apart(commit(answered_at=answered_at, waited=waited, **PLAIN), step, 10.0)
    assert done.wait_s == pytest.approx(wait_s)
    assert done.wait_s + done.verify_s + done.overhead_s == pytest.approx(done.ended_at - 10.0)


NOT_ASKED = {"asked_at": 0.0, "answered_at": 0.0, "waited": False}
ALONE = NOT_ASKED | {"has_drafter": False}
LATE = {"answered_at": 0.0}
AUTO = {"mode": DraftMode.AUTO}
CHOSEN = Decision(nodes=0, rate=100.0, plain_rate=100.0)
CASES: list[tuple[dict[str, Any], dict[str, Any], Decision | None, Outcome, PlainReason]] = [
    ({"mode": DraftMode.OFF}, ALONE, None, Outcome.PLAIN, PlainReason.OFF),
    ({}, ALONE, None, Outcome.PLAIN, PlainReason.NO_DRAFTER),
    ({"undraftable": True}, ALONE, None, Outcome.PLAIN, PlainReason.UNDRAFTABLE),
    ({}, LATE, None, Outcome.LATE, PlainReason.LATE_DRAFT),
    (AUTO, LATE, None, Outcome.LATE, PlainReason.LATE_DRAFT),
    (AUTO, NOT_ASKED, None, Outcome.PLAIN, PlainReason.BUDGET),
    (AUTO, LATE | {"waited": False}, None, Outcome.PLAIN, PlainReason.BUDGET),
    (AUTO, {}, CHOSEN, Outcome.UNUSED, PlainReason.BUDGET),
    ({}, {}, None, Outcome.UNUSED, PlainReason.EMPTY_DRAFT),
    ({"length_limit": 3}, {}, None, Outcome.UNUSED, PlainReason.END),
]


@pytest.mark.parametrize(("session", "fields", "decision", "outcome", "reason"), CASES)
def test_a_plain_round_has_a_reason(
    session: dict[str, Any],
    fields: dict[str, Any],
    decision: Decision | None,
    outcome: Outcome,
    reason: PlainReason,
) -> None:
    plain = commit(sequence=sequence(**session), **PLAIN | fields)
    done = take_apart(plain, replace(STEP, decision=decision), 10.0)
    assert (done.outcome, done.reason) == (outcome, reason)


def test_nodes_without_an_answer_are_what_is_left_of_an_older_draft() -> None:
    assert take_apart(commit(answered_at=0.0), STEP, 10.0).outcome is Outcome.REROOTED


@pytest.mark.parametrize(("plain_rate", "expected"), [(10.0, 0.0), (40.0, 0.25)])
def test_regret_is_what_plain_decoding_would_have_given_more(plain_rate: float, expected: float) -> None:
    done = take_apart(commit(), replace(STEP, started_at=10.05, executed_at=10.09, finished_at=10.1), 10.0)
    # Three tokens in a tenth of a second.
    decision = Decision(nodes=3, rate=50.0, plain_rate=plain_rate)
    assert regret(decision, [done]) == pytest.approx(expected)
