"""One group or two: what gave more tokens a second in the load at hand."""

import pytest

from draftwood_verifier.budget.grouping import Grouping


def live(grouping: Grouping, steps: int, *, step_s: dict[int, float]) -> list[int]:
    """Steps of 8 sessions: 8 tokens in one group, 4 in two."""
    seen = []
    grouping.turn_to(8)
    for _ in range(steps):
        seen.append(grouping.groups)
        grouping.saw(8 // grouping.groups, step_s[grouping.groups])
    return seen


@pytest.mark.parametrize(("two_s", "best"), [(0.006, 2), (0.0099, 1), (0.012, 1)])
def test_the_quicker_one_stays(two_s: float, best: int) -> None:
    grouping = Grouping(0)
    seen = live(grouping, 4000, step_s={1: 0.02, 2: two_s})
    assert {1, 2} == set(seen)
    assert seen[1000:].count(best) > 2500
    assert seen[-600:].count(best) > 450


def test_another_drafter_starts_over_with_one() -> None:
    grouping = Grouping(0)
    live(grouping, 400, step_s={1: 0.02, 2: 0.005})
    assert grouping.groups == 2
    grouping.start_over()
    assert set(live(grouping, 60, step_s={1: 0.02, 2: 0.005})) == {1}


def test_every_load_has_its_own_and_keeps_it() -> None:
    grouping = Grouping(0)
    live(grouping, 400, step_s={1: 0.02, 2: 0.005})
    grouping.turn_to(32)
    assert grouping.groups == 1
    for _ in range(400):
        grouping.saw(8, {1: 0.02, 2: 0.04}[grouping.groups])
    grouping.turn_to(7)
    assert grouping.groups == 2


def test_one_session_is_never_tried_as_two_groups() -> None:
    grouping = Grouping(0)
    for _ in range(400):
        grouping.turn_to(1)
        assert grouping.groups == 1
        grouping.saw(3, 0.01)


@pytest.mark.parametrize(("two_s", "tried"), [(0.02, 12), (0.0105, 72)])
def test_a_trial_that_is_lost_at_once_is_short(two_s: float, tried: int) -> None:
    seen = live(Grouping(0), 300, step_s={1: 0.02, 2: two_s})
    assert seen.count(2) == tried


@pytest.mark.parametrize("groups", [1, 2])
def test_pinned_is_pinned(groups: int) -> None:
    grouping = Grouping(groups)
    assert set(live(grouping, 2000, step_s={1: 1.0, 2: 1.0})) == {groups}
    grouping.start_over()
    assert grouping.groups == groups
