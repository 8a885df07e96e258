"""What the budget learns from steps: their costs, pauses between them, waits for drafts, what speculation gave."""

import dataclasses
from typing import Any

import pytest

from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.budget.policy import Decision, Policy
from draftwood_verifier.commit import Commit
from draftwood_verifier.pace import Pace
from draftwood_verifier.record import StepRecord
from draftwood_verifier.scheduler import Segment, SegmentKind
from draftwood_verifier.sequence import Sequence
from draftwood_wire.tree import TokenTree
from tests.unit.verifier.test_rounds import PLAIN, TREE, commit, sequence

PAUSE_S, STEP_S = 0.003, 0.05
DECISION = Decision(nodes=3, rate=30.0, plain_rate=20.0)


class Steps:
    """A policy, and steps of one sequence that follow each other."""

    def __init__(self, known_s: float = STEP_S) -> None:
        axes = Axes(sequences=(1, 2, 4))
        self.policy = Policy(
            CostTable(axes, [[[known_s for _ in axes.nodes] for _ in axes.sequences] for _ in axes.context])
        )
        self.sequence, self.prompt = sequence(), sequence(session_id=99)
        self._pace = Pace(self.policy)
        self.now = 10.0

    def step(
        self,
        *commits: Commit,
        pause_s: float = PAUSE_S,
        kind: SegmentKind = SegmentKind.DECODE,
        prompt_rows: int = 0,
        first: tuple[Commit, ...] = (),  # first token of the prompt
        number: int = 1,
        decision: Decision | None = None,
    ) -> None:
        prompt = [Segment(self.prompt, SegmentKind.PREFILL, 0, prompt_rows, 0)] if prompt_rows else []
        started_at = self.now + pause_s
        self.now = started_at + STEP_S
        self._pace.step_done(
            StepRecord(
                number=number,
                started_at=started_at,
                executed_at=self.now,
                device_s=0.0,
                finished_at=self.now,
                segments=[Segment(c.sequence, kind, 0, 1 + c.nodes_verified, 100) for c in commits] + prompt,
                commits=[*commits, *first],
                decision=decision,
            )
        )

    def plain(self, sequence: Sequence | None = None) -> Commit:
        return self._commit(sequence, waited=False, **PLAIN)

    def drafted(self, sequence: Sequence | None = None) -> Commit:
        return self._commit(sequence, waited=True)

    def _commit(self, sequence: Sequence | None, **fields: Any) -> Commit:
        return commit(sequence=sequence or self.sequence, **fields)


def test_a_step_teaches_what_so_many_nodes_cost() -> None:
    steps = Steps(known_s=STEP_S / 2)
    for _ in range(60):
        steps.step(steps.drafted())
    costs = steps.policy.costs
    assert costs.cost(1, 3, 100) == pytest.approx(STEP_S, rel=0.1)
    assert costs.cost(1, 0, 100) < 0.9 * STEP_S  # of plain steps nothing was seen


@pytest.mark.parametrize("kind", [SegmentKind.DECODE, SegmentKind.PREFILL])
def test_a_draft_teaches_what_all_its_nodes_were_worth(kind: SegmentKind, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    lessons: list[tuple[TokenTree, list[int], bool]] = []
    monkeypatch.setattr(
        steps.policy.calibration, "observe", lambda tree, tokens, *, sampled: lessons.append((tree, tokens, sampled))
    )
    drafted = dataclasses.replace(steps.plain(), draft=TREE)  # of which nothing was looked at
    steps.step(drafted, steps.plain(), kind=kind)
    assert lessons == [(TREE, drafted.tokens, False)]


def test_of_many_drafts_some_teach_and_others_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    lessons: list[int] = []
    monkeypatch.setattr(steps.policy.calibration, "observe", lambda _, tokens, **__: lessons.append(tokens[0]))
    drafted = [
        dataclasses.replace(steps.plain(sequence(session_id=number)), draft=TREE, tokens=[number])
        for number in range(40)
    ]
    for number in range(3):
        steps.step(*drafted, number=number)
        assert len(lessons) <= 16 * (number + 1)
    assert sorted(lessons) == list(range(40))
    lessons.clear()
    steps.step(*drafted[:16])
    assert lessons == list(range(16))


def test_the_time_between_two_plain_steps_is_a_pause() -> None:
    steps = Steps()
    for _ in range(3):
        steps.step(steps.plain())
    assert steps.policy.pauses.known == {1: pytest.approx(PAUSE_S)}
    assert not steps.policy.waits.known


def test_the_time_before_a_step_that_waited_is_a_wait() -> None:
    steps = Steps()
    for _ in range(3):
        steps.step(steps.drafted(), pause_s=0.02)
    assert steps.policy.waits.known == {1: pytest.approx(0.02)}
    assert not steps.policy.pauses.known


def test_a_wait_for_a_drafter_that_had_to_catch_up_says_nothing_about_later_ones() -> None:
    steps = Steps()
    steps.step(steps.plain())
    steps.step(dataclasses.replace(steps.drafted(), behind=True), pause_s=0.5)
    assert not steps.policy.waits.known
    assert not steps.policy.pauses.known
    steps.step(steps.drafted(), pause_s=0.02)
    assert steps.policy.waits.known == {1: pytest.approx(0.02)}


def test_a_wait_counts_those_who_waited() -> None:
    steps, other = Steps(), sequence(session_id=2)
    for _ in range(2):
        steps.step(steps.drafted(), steps.plain(other), pause_s=0.02)
    assert list(steps.policy.waits.known) == [1]


@pytest.mark.parametrize("kind", [SegmentKind.PREFILL, SegmentKind.REPLAY])
def test_steps_with_other_work_teach_nothing(kind: SegmentKind) -> None:
    steps = Steps()
    before = [list(line) for lines in steps.policy.costs.seconds for line in lines]
    for _ in range(3):
        steps.step(steps.plain(), kind=kind)
    assert [line for lines in steps.policy.costs.seconds for line in lines] == before
    # Nor do drafts that were under way meanwhile.
    steps.policy.waits.observe(1, 0.01)
    steps.policy.saw_late_answer(1, 0.05, steps.now + 0.01)
    assert steps.policy.waits.known == {1: 0.01}
    steps.step(steps.plain())  # its pause was spent beside that work
    assert not steps.policy.pauses.known


def test_a_step_of_others_says_nothing_about_the_time_before_it() -> None:
    steps, other = Steps(), sequence(session_id=2)
    steps.step(steps.plain())
    steps.step(steps.plain(other))
    steps.step(steps.plain(), steps.plain(other))
    assert not steps.policy.pauses.known


def test_what_speculation_gave_is_held_against_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    outcomes: list[tuple[Decision, int, float]] = []
    windows: list[tuple[int, float]] = []
    monkeypatch.setattr(
        steps.policy, "saw_outcome", lambda d, *, tokens, seconds, **_: outcomes.append((d, tokens, seconds))
    )
    monkeypatch.setattr(steps.policy.grouping, "saw", lambda *saw: windows.append(saw))
    nothing = dataclasses.replace(DECISION, nodes=0)
    steps.step(steps.plain())
    steps.step(steps.drafted(), pause_s=0.02, decision=DECISION)
    steps.step(steps.drafted(), pause_s=0.02, decision=nothing)
    steps.step(steps.plain(), decision=DECISION)
    assert outcomes == [(DECISION, 3, pytest.approx(0.02 + STEP_S))]
    assert windows == [(3, pytest.approx(0.02 + STEP_S))] * 2


@pytest.mark.parametrize(("row_s", "wait_s"), [(None, 0.023), (0.0, 0.073), (0.002, 0.053), (1.0, 0.023)])
def test_a_wait_leaves_room_for_prompts_that_would_be_read_beside_decoding(row_s: float | None, wait_s: float) -> None:
    steps = Steps()
    if row_s is not None:
        steps.policy.saw_rows_beside(1, row_s)
    steps.step(steps.drafted())
    steps.step(prompt_rows=10, pause_s=0.003)
    steps.step(steps.drafted(), pause_s=0.02)
    assert steps.policy.waits.known == {1: pytest.approx(wait_s)}


def test_prompts_beside_decoding_teach_what_their_rows_take() -> None:
    steps = Steps(known_s=STEP_S / 2)
    steps.step(steps.drafted(), prompt_rows=10)
    assert steps.policy.beside_s(20) == pytest.approx(STEP_S)


def test_steps_with_prompts_beside_decoding_are_timed_as_well() -> None:
    steps = Steps()
    for _ in range(3):
        steps.step(steps.drafted(), prompt_rows=10, pause_s=0.02)
    assert steps.policy.waits.known == {1: pytest.approx(0.02)}
    before = [list(line) for lines in steps.policy.costs.seconds for line in lines]
    steps.step(steps.plain(), prompt_rows=10)
    assert steps.policy.pauses.known == {1: pytest.approx(PAUSE_S)}
    assert [line for lines in steps.policy.costs.seconds for line in lines] == before


def test_a_first_token_beside_decoding_is_not_what_speculation_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(known_s=STEP_S / 2)
    outcomes: list[tuple[int, float]] = []
    monkeypatch.setattr(
        steps.policy, "saw_outcome", lambda _, *, tokens, seconds, **__: outcomes.append((tokens, seconds))
    )
    first = dataclasses.replace(steps.plain(sequence(session_id=99)), round=0)
    steps.step(steps.drafted(), prompt_rows=10)
    for firsts in ((), (first,)):
        steps.step(steps.drafted(), first=firsts, pause_s=0.02, prompt_rows=10, decision=DECISION)
    # Half of the step was the prompt's.
    assert outcomes == [(3, pytest.approx(0.02 + STEP_S / 2))] * 2


@pytest.mark.parametrize(("again", "timed"), [(4, True), (3, True), (2, False)])
def test_rounds_of_many_that_are_nearly_the_same_are_timed(again: int, timed: bool) -> None:
    steps = Steps()
    sequences = [sequence(session_id=number) for number in range(4)]
    later = sequences[:again] + [sequence(session_id=10 + number) for number in range(4 - again)]
    steps.step(*map(steps.drafted, sequences))
    steps.step(*map(steps.drafted, later), pause_s=0.02)
    assert steps.policy.waits.known == ({4: pytest.approx(0.02)} if timed else {})


@pytest.mark.parametrize(("behind", "timed"), [(1, True), (2, False)])
def test_some_of_many_that_the_drafter_catches_up_with_are_a_part_of_the_wait(behind: int, timed: bool) -> None:
    steps = Steps()
    drafted = [steps.drafted(sequence(session_id=number)) for number in range(4)]
    steps.step(*drafted)
    late = [dataclasses.replace(commit, behind=True) for commit in drafted[:behind]]
    steps.step(*late, *drafted[behind:], pause_s=0.02)
    assert steps.policy.waits.known == ({4: pytest.approx(0.02)} if timed else {})
