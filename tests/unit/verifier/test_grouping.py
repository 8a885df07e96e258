"""One group or two: what gave more tokens a second in the load at hand."""

import pytest

from draftwood_verifier.budget.grouping import Grouping


def live(grouping: Grouping, steps: int, *, step_s: dict[int, float]) -> list[int]:
    """Steps of 8 tokens in one group, of 4 in two."""
    seen = []
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


def test_another_load_starts_over_with_one() -> None:
    grouping = Grouping(0)
    live(grouping, 400, step_s={1: 0.02, 2: 0.005})
    assert grouping.groups == 2
    grouping.start_over()
    assert set(live(grouping, 60, step_s={1: 0.02, 2: 0.005})) == {1}


@pytest.mark.parametrize("groups", [1, 2])
def test_pinned_is_pinned(groups: int) -> None:
    grouping = Grouping(groups)
    assert set(live(grouping, 2000, step_s={1: 1.0, 2: 1.0})) == {groups}
    grouping.start_over()
    assert grouping.groups == groups
