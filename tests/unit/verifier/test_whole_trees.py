"""Fixed sizes against the choice among nodes: the choice has to bring what it takes."""

import pytest

from draftwood_verifier.budget.whole_trees import WholeTrees

# One tree whose first two nodes are sure and one whose first four are.
SCORES = [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
NODE_S = 0.1


def rate(nodes: int, gain: float) -> float:
    return (2 + gain) / (1 + NODE_S * nodes)


# The six nodes that are right, and no other.
CHOSEN = rate(6, 6.0)
# Of fixed sizes four of each are best: as many tokens, and two nodes in vain.
LOST = 1 - rate(8, 6.0) / CHOSEN


def see(whole: WholeTrees, took: float, *, batch: int = 2, times: int = 1, chosen: float = CHOSEN) -> None:
    for _ in range(times):
        whole.saw(batch, SCORES, lambda nodes, gain: rate(nodes, gain) / chosen, took)


def test_a_choice_that_takes_more_than_it_brings_is_left_out() -> None:
    whole = WholeTrees()
    see(whole, LOST + 0.01, times=8)
    assert whole.nodes(2) == 4


def test_a_choice_that_brings_more_than_it_takes_is_made() -> None:
    whole = WholeTrees()
    see(whole, LOST - 0.01, times=50)
    assert whole.nodes(2) is None


def test_before_enough_was_seen_and_for_other_batches_nodes_are_chosen() -> None:
    whole = WholeTrees()
    see(whole, 1.0, times=7)
    assert whole.nodes(2) is None
    see(whole, 1.0)
    assert whole.nodes(2) == 4
    assert whole.nodes(1) is whole.nodes(4) is None


def test_what_has_changed_is_believed_after_a_while() -> None:
    whole = WholeTrees()
    see(whole, 1.0, times=8)
    see(whole, LOST / 2, times=50)
    assert whole.nodes(2) is None
    see(whole, 2 * LOST, times=50)
    assert whole.nodes(2) == 4


@pytest.mark.parametrize("size", [1, 6])
def test_the_size_goes_by_what_nodes_cost(size: int) -> None:
    """Where another node is free all of them are looked at, and where it is dear one of each."""
    whole, node_s = WholeTrees(), 0.0 if size == 6 else 10.0
    scores = [[0.9, 0.5, 0.4, 0.3, 0.2, 0.1]]
    for _ in range(8):
        whole.saw(1, scores, lambda nodes, gain: (1 + gain) / (10 + node_s * max(0, nodes - 1)), took=1.0)
    assert whole.nodes(1) == size
