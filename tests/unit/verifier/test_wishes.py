"""Whole trees first; then as many nodes as steps look at, with a whole tree now and then to see whether more pay."""

import pytest

from draftwood_verifier.budget.wishes import Wishes

CHANCES = [0.99**depth for depth in range(1, 151)]


def look(wishes: Wishes, batch: int, trees: list[int], *, nodes: int = 16, times: int = 1) -> None:
    """Steps in which the first so many nodes of each tree are looked at."""
    for _ in range(times):
        wishes.saw(batch, [CHANCES[:nodes]] * len(trees), [list(range(looked_at)) for looked_at in trees])


def test_until_enough_was_seen_whole_trees_are_asked_for() -> None:
    wishes = Wishes()
    look(wishes, 8, [5, 3], times=7)
    assert wishes.nodes(8, 1) is None
    look(wishes, 8, [5, 3])
    assert wishes.nodes(8, 1) == 5


def test_of_other_batches_nothing_is_known() -> None:
    wishes = Wishes()
    look(wishes, 8, [5, 3], times=8)
    assert wishes.nodes(7, 1) == 5
    assert wishes.nodes(16, 1) is None


@pytest.mark.parametrize(("rare", "wanted"), [(1_000, 4), (4, 6)])
def test_the_last_nodes_have_to_be_worth_a_hundredth_of_all(rare: int, wanted: int) -> None:
    """Of four trees, one is looked at further in one step in so many."""
    wishes = Wishes()
    for step in range(8 * rare):
        look(wishes, 8, [4, 4, 4, 6 if step % rare == 0 else 4])
    assert wishes.nodes(8, 1) == wanted


def test_where_all_nodes_are_looked_at_all_are_wanted() -> None:
    wishes = Wishes()
    look(wishes, 1, [150], nodes=150, times=20)
    assert wishes.nodes(1, 1) is None


def test_requests_that_allow_what_was_enough_go_on_teaching() -> None:
    wishes = Wishes()
    look(wishes, 8, [10], nodes=10, times=20)
    assert wishes.nodes(8, 1) is None
    look(wishes, 8, [5], nodes=10, times=100)
    assert wishes.nodes(8, 1) == 5


def test_now_and_then_whole_trees_tell_whether_more_pay() -> None:
    wishes = Wishes()
    look(wishes, 8, [4, 4], times=8)
    assert [number for number in range(64) if wishes.nodes(8, number) is None] == [0, 16, 32, 48]
    # Trees of what was asked for can't show what lies beyond.
    look(wishes, 8, [4, 4], nodes=4, times=100)
    look(wishes, 8, [12, 12], times=10)
    assert wishes.nodes(8, 1) == 12
    look(wishes, 8, [4, 4], nodes=12, times=100)
    assert wishes.nodes(8, 1) == 12


def test_steps_that_look_at_nothing_teach_nothing() -> None:
    wishes = Wishes()
    look(wishes, 8, [0, 0], times=20)
    assert wishes.nodes(8, 1) is None
