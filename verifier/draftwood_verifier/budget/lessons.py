"""What trees that came and choices among their nodes teach; it is taken in when nobody waits for the loop."""

import math
from dataclasses import dataclass
from itertools import groupby

from draftwood_verifier.budget.allocation import Allocation, Offer
from draftwood_verifier.budget.calibration import Calibration
from draftwood_verifier.budget.profile import Profile
from draftwood_verifier.budget.whole_trees import WholeTrees
from draftwood_verifier.budget.wishes import Wishes
from draftwood_wire.tree import TokenTree

# Trees, or rounds, of a batch that are learned from at most: more would say little new, and take time beside the
# drafter.
TAUGHT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Among the nodes of `trees`, which have the chances `scores`, for a batch of such a size."""

    batch: int
    trees: list[TokenTree]
    scores: list[list[float]]
    offer: Offer
    allocation: Allocation
    took_s: float
    asked_for_all: bool  # that the requests allow


class Lessons:
    """For the profile, the wishes and the whole trees, by chances as the calibration knows them."""

    def __init__(self, calibration: Calibration, profile: Profile, wishes: Wishes, whole_trees: WholeTrees) -> None:
        self._calibration = calibration
        self._profile = profile
        self._wishes = wishes
        self._whole_trees = whole_trees
        self._arrived: list[_Arrival] = []
        self._choices: list[Choice] = []

    def came(self, tree: TokenTree, *, sampled: bool, asked: int, round_number: int) -> None:
        """One of the trees that were `asked` for together."""
        self._arrived.append(_Arrival(tree, round_number, sampled, asked))

    def chosen(self, choice: Choice) -> None:
        self._choices.append(choice)

    def take_in(self) -> None:
        """Teach them what has come since the last time."""
        known: dict[int, list[float]] = {}
        for choice in self._choices:
            self._wishes.saw(choice.batch, choice.scores, choice.allocation.entries)
            if choice.asked_for_all:
                self._compare(choice)
            known |= {id(tree): scores for tree, scores in zip(choice.trees, choice.scores, strict=True)}
        stride = math.ceil(len(self._arrived) / TAUGHT) or 1
        for (round_number, sampled, asked), group in groupby(self._arrived[::stride], key=lambda each: each.kind):
            trees = [each.tree for each in group]
            scores = [known.get(id(tree)) or self._calibration.scores(tree, sampled=sampled) for tree in trees]
            self._profile.observe(
                trees, scores, sampled=sampled, asked=max(1, asked // stride), round_number=round_number
            )
        self._arrived.clear()
        self._choices.clear()

    def _compare(self, choice: Choice) -> None:
        """What fixed sizes would have given."""
        offer, chosen = choice.offer, choice.allocation
        self._whole_trees.saw(
            choice.batch,
            choice.scores,
            rate_of=lambda nodes, gain: offer.rate(nodes, gain) / chosen.rate,
            took=choice.took_s * chosen.rate / chosen.tokens,
        )


@dataclass(frozen=True, slots=True)
class _Arrival:
    tree: TokenTree
    round_number: int
    sampled: bool
    asked: int

    @property
    def kind(self) -> tuple[int, bool, int]:
        return self.round_number, self.sampled, self.asked
