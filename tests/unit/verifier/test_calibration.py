"""Scores follow what was committed: the drafter's own word is only where they start."""

import numpy as np
import pytest

from draftwood_verifier.budget.calibration import Calibration
from draftwood_wire.tree import TokenTree
from tests.unit.verifier.trees import random_tree

LOG_PROBS = np.log(np.array([0.8, 0.64, 0.1, 0.08], np.float32))
# Two on the spine, a sibling of the first, and a child of that sibling.
TREE = TokenTree(
    token_ids=np.array([10, 11, 20, 21], np.int32), parents=np.array([0, 1, 0, 3], np.int32), log_probs=LOG_PROBS
)


def test_without_experience_the_draft_is_taken_at_its_word() -> None:
    assert Calibration().scores(TREE, sampled=False) == pytest.approx(np.exp(LOG_PROBS), rel=1e-5)


def test_a_drafter_that_is_always_wrong_is_worth_nothing_soon() -> None:
    calibration = Calibration()
    for _ in range(64):
        calibration.observe(TREE, [99], sampled=False)
    assert sum(calibration.scores(TREE, sampled=False)) < 0.25
    # The other class has learned nothing from it.
    assert sum(calibration.scores(TREE, sampled=True)) == pytest.approx(float(np.exp(LOG_PROBS).sum()), rel=1e-5)


def test_chances_come_to_what_was_seen() -> None:
    random = np.random.default_rng(5)
    calibration = Calibration()
    for _ in range(4000):
        # First token right in 60 of 100, its sibling in 30; the second right in half, given the first.
        first = int(random.choice([10, 20, 99], p=[0.6, 0.3, 0.1]))
        calibration.observe(TREE, [first, int(random.choice([11, 98]))], sampled=False)
    one, two, sibling, below = calibration.scores(TREE, sampled=False)
    assert one == pytest.approx(0.6, abs=0.04)
    assert two == pytest.approx(0.3, abs=0.04)
    assert sibling == pytest.approx(0.3, abs=0.04)
    assert below < 0.02


def test_siblings_that_the_draft_is_as_sure_of_learn_apart() -> None:
    random, calibration = np.random.default_rng(6), Calibration()
    pair = TokenTree(
        token_ids=np.array([10, 20], np.int32),
        parents=np.zeros(2, np.int32),
        log_probs=np.log(np.array([0.4, 0.4], np.float32)),
    )
    for _ in range(4000):
        calibration.observe(pair, [int(random.choice([10, 20, 99], p=[0.7, 0.1, 0.2]))], sampled=False)
    assert calibration.scores(pair, sampled=False) == pytest.approx([0.7, 0.1], abs=0.04)


def test_only_nodes_on_the_way_of_the_known_tokens_teach() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.observe(TREE, [10], sampled=False)
    one, two, *_ = calibration.scores(TREE, sampled=False)
    assert one > 0.95
    assert 0.8 < two / one < 0.95  # nobody knows yet what came after it; but the draft is too modest in general


@pytest.mark.parametrize("seed", range(20))
def test_a_child_is_never_above_its_parent_or_its_elder_siblings(seed: int) -> None:
    random = np.random.default_rng(seed)
    calibration = Calibration()
    for _ in range(50):
        tree = random_tree(random, 12)
        calibration.observe(tree, random.choice(tree.token_ids, 4).tolist(), sampled=False)
    tree = random_tree(random, 40)
    scores = [1.0, *calibration.scores(tree, sampled=False)]
    above = dict(enumerate(scores))
    for node, parent in enumerate(tree.parents.tolist(), start=1):
        assert 0 <= scores[node] <= above[parent]
        above[parent] = scores[node]
