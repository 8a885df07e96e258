"""How many nodes of a tree are worth asking for: where trees share a step, it hardly ever looks at the last ones.

A tree is drafted, sent, checked and scored node by node. What nodes are good for is seen on whole trees, which are
asked for first and then now and then.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from draftwood_verifier.budget.size_class import size_class

# Numbers that are asked for where not all are.
_NUMBERS = (4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
# Share of what the nodes that were looked at promised that may lie beyond.
_MOST_LOST = 0.01
# Steps with whole trees that are seen first; of the rounds after them one in so many asks for whole ones.
_FIRST_STEPS, _WHOLE_EVERY = 8, 16
_RATE = 0.1


def is_for_all(round_number: int) -> bool:
    """Whether the round asks for all that requests allow, to see what more nodes would be good for."""
    return round_number % _WHOLE_EVERY == 0


class Wishes:
    """By the size of the batch."""

    def __init__(self) -> None:
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)

    def nodes(self, batch: int, round_number: int) -> int | None:
        """To ask for in this round; None: all that a request allows."""
        return None if is_for_all(round_number) else self._enough(batch)

    def saw(self, batch: int, scores: list[list[float]], entries: list[list[int]]) -> None:
        """A step looked at `entries` of trees whose nodes have these chances; only whole trees teach."""
        enough = self._enough(batch) or 0
        whole = [(own, chosen) for own, chosen in zip(scores, entries, strict=True) if len(own) > enough]
        looked_at = [(entry, own[entry]) for own, chosen in whole for entry in chosen]
        if looked_at:
            self._seen[size_class(batch)].take_in(looked_at, most=max(len(own) for own, _ in whole))

    def _enough(self, batch: int) -> int | None:
        seen = self._seen.get(size_class(batch))
        return None if seen is None or seen.steps < _FIRST_STEPS else seen.enough


@dataclass(slots=True)
class _Seen:
    """What the nodes that a step looked at promised, averages that forget: all of them, and those beyond a number."""

    steps: int = 0
    all: float = 0.0
    beyond: list[float] = field(default_factory=lambda: [0.0] * len(_NUMBERS))
    enough: int | None = None

    def take_in(self, looked_at: list[tuple[int, float]], most: int) -> None:
        """most: nodes of the largest of the trees."""
        self.steps += 1
        rate = max(_RATE, 1 / self.steps)
        self.all += rate * (sum(chance for _, chance in looked_at) - self.all)
        for index, number in enumerate(_NUMBERS):
            beyond = sum(chance for entry, chance in looked_at if entry >= number)
            self.beyond[index] += rate * (beyond - self.beyond[index])
        # As many as there are is all: then every tree is a whole one, and goes on teaching.
        lost = zip(_NUMBERS, self.beyond, strict=True)
        self.enough = next((n for n, beyond in lost if beyond <= _MOST_LOST * self.all and n < most), None)
