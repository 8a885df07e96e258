"""What trees were worth lately: so many rounds, however many trees a round has, and less of them after a gap."""

import numpy as np
import pytest

from draftwood_verifier.budget.calibration import Calibration
from draftwood_verifier.budget.profile import Profile
from draftwood_wire.tree import TokenTree


def chain(chance: float, nodes: int = 4) -> TokenTree:
    ids = np.arange(nodes, dtype=np.int32)
    return TokenTree(token_ids=ids, parents=ids, log_probs=((1 + ids) * np.log(chance)).astype(np.float32))


def see(
    profile: Profile,
    trees: list[TokenTree],
    calibration: Calibration,
    *,
    sampled: bool = False,
    asked: int = 1,
    round_number: int = 1,
) -> None:
    scores = [calibration.scores(tree, sampled=sampled) for tree in trees]
    profile.observe(trees, scores, sampled=sampled, asked=asked, round_number=round_number)


class Drafts:
    def __init__(self, asked: int) -> None:
        self.profile, self._asked = Profile(), asked
        self._calibration = Calibration()
        self.round_number = 0

    def rounds(self, count: int, chance: float) -> float:
        """Tokens that 4 nodes are said to be worth after so many rounds of such trees."""
        for _ in range(count):
            self.round_number += 1
            for trees in ([chain(chance)] * (self._asked // 2), [chain(chance)] * (self._asked - self._asked // 2)):
                if trees:
                    see(self.profile, trees, self._calibration, asked=self._asked, round_number=self.round_number)
        return self.worth

    def score_again(self) -> float:
        self.profile.score_again(self._calibration)
        return self.worth

    @property
    def worth(self) -> float:
        return float(self.profile.tokens(np.array([4.0]), 0.0)[0])


@pytest.mark.parametrize("asked", [1, 64])
def test_a_round_moves_it_as_far_whatever_the_batch(asked: int) -> None:
    drafts = Drafts(asked)
    poor = drafts.rounds(100, 0.2)
    after_one, after_many = drafts.rounds(1, 0.9), drafts.rounds(60, 0.9)
    assert 0.03 < (after_one - poor) / (after_many - poor) < 0.1
    assert after_many > 5 * poor


def test_after_a_gap_old_trees_count_less() -> None:
    drafts = Drafts(8)
    poor = drafts.rounds(100, 0.2)
    drafts.round_number += 40
    fresh = drafts.rounds(1, 0.9)
    assert fresh > 4 * poor
    assert drafts.score_again() > fresh  # of those that are kept, all are as new


def test_trees_are_kept_of_several_rounds_whatever_the_batch() -> None:
    drafts = Drafts(64)
    drafts.rounds(7, 0.2)
    drafts.rounds(1, 0.9)
    assert drafts.score_again() < 1.0


def test_it_foretells_the_best_nodes_of_a_batch() -> None:
    random, calibration, profile = np.random.default_rng(1), Calibration(), Profile()
    together: list[float] = []
    apart: list[float] = []
    for number in range(1, 201):
        trees = [chain(float(chance), nodes=8) for chance in random.uniform(0.1, 0.95, 32)]
        scores = [calibration.scores(tree, sampled=False) for tree in trees]
        together.append(sum(sorted(np.concatenate(scores), reverse=True)[:64]) / 32)
        apart.append(sum(sum(own[:2]) for own in scores) / 32)
        profile.observe(trees, scores, sampled=False, asked=32, round_number=number)
    foretold = float(profile.tokens(np.array([2.0]), 0.0)[0])
    assert foretold == pytest.approx(np.mean(together[-50:]), rel=0.02)
    assert foretold > 1.2 * np.mean(apart[-50:])


def test_greedy_and_sampled_trees_share_a_batch_too() -> None:
    profile, calibration = Profile(), Calibration()
    for sampled, chance in ((False, 0.9), (True, 0.1)):
        see(profile, [chain(chance)], calibration, sampled=sampled)
    good, poor = (np.cumsum(calibration.scores(chain(c), sampled=False)) for c in (0.9, 0.1))
    mixed = profile.tokens(np.array([2.0, 4.0]), 0.5)
    assert mixed.tolist() == pytest.approx([good[3] / 2, (good[3] + poor[3]) / 2], rel=1e-3)
