"""What trees that came and choices among their nodes teach; it is taken in when nobody waits for the loop."""

import math
from dataclasses import dataclass
from itertools import groupby

from draftwood_verifier.budget.calibration import Calibration
from draftwood_verifier.budget.profile import Profile
from draftwood_verifier.budget.wishes import Wishes
from draftwood_wire.tree import TokenTree

# Trees, or rounds, of a batch that are learned from at most: more would say little new, and take time beside the
# drafter.
TAUGHT = 16


class Lessons:
    """For the profile and the wishes, by chances as the calibration knows them."""

    def __init__(self, calibration: Calibration, profile: Profile, wishes: Wishes) -> None:
        self._calibration = calibration
        self._profile = profile
        self._wishes = wishes
        self._arrived: list[_Arrival] = []
        self._choices: list[_Choice] = []

    def came(self, tree: TokenTree, *, sampled: bool, asked: int, round_number: int) -> None:
        """One of the trees that were `asked` for together."""
        self._arrived.append(_Arrival(tree, round_number, sampled, asked))

    def chosen(self, batch: int, trees: list[TokenTree], scores: list[list[float]], entries: list[list[int]]) -> None:
        """`entries` of these trees are looked at, whose nodes have the chances `scores`; they are of such a batch."""
        self._choices.append(_Choice(batch, trees, scores, entries))

    def take_in(self) -> None:
        """Teach both what has come since the last time."""
        known: dict[int, list[float]] = {}
        for choice in self._choices:
            self._wishes.saw(choice.batch, choice.scores, choice.entries)
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


@dataclass(frozen=True, slots=True)
class _Arrival:
    tree: TokenTree
    round_number: int
    sampled: bool
    asked: int

    @property
    def kind(self) -> tuple[int, bool, int]:
        return self.round_number, self.sampled, self.asked


@dataclass(frozen=True, slots=True)
class _Choice:
    batch: int
    trees: list[TokenTree]
    scores: list[list[float]]
    entries: list[list[int]]
