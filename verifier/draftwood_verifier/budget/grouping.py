"""Whether a drafter's sessions go together, or as two groups: one is verified while the other is drafted for.

Two groups hide the drafts behind the target's work, and pay for it with smaller batches; where both share a processor
nothing is hidden. So both are tried in turn, in the very load at hand, and the quicker one stays for a while.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from draftwood_verifier.budget.size_class import size_class

# Steps of a window, windows of a trial (one and two groups in turn), and steps before the next trial.
_WINDOW = 12
_WINDOWS = 12
_FIRST_PAUSE = 64
_FIRST_REST = 1024
_LONGEST_REST = 16_384
# Two groups have to be this much better: the trial is short and the machine is never quiet.
_GAIN = 1.03
# So much worse after an equal number of steps, and there is nothing more to find out.
_HOPELESS = 0.85


@dataclass(slots=True)
class _Tally:
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Trials:
    """Of one size of the load."""

    groups: int = 1
    resting: int = _FIRST_PAUSE  # steps before the next trial
    rest: int = _FIRST_REST
    steps: int = 0
    tallies: dict[int, _Tally] = field(default_factory=lambda: {1: _Tally(), 2: _Tally()})

    def saw(self, tokens: int, seconds: float) -> None:
        if self.resting:
            self.resting -= 1
            return
        self.tallies[self.groups].tokens += tokens
        self.tallies[self.groups].seconds += seconds
        self.steps += 1
        if self.steps == _WINDOW * _WINDOWS or (self.steps % (2 * _WINDOW) == 0 and self._gain < _HOPELESS):
            self._decide()
        elif self.steps % _WINDOW == 0:
            self.groups = 3 - self.groups

    @property
    def _gain(self) -> float:
        return self.tallies[2].rate / self.tallies[1].rate

    def _decide(self) -> None:
        self.groups = 2 if self._gain > _GAIN else 1
        self.resting = self.rest
        self.rest = min(2 * self.rest, _LONGEST_REST)
        self.steps, self.tallies = 0, {1: _Tally(), 2: _Tally()}


class Grouping:
    """`groups` is 1 or 2; pinned to what is given, decided by trial when that is 0.

    What was found out is kept by the power of two of the sessions that are drafted for: loads come back.
    """

    def __init__(self, pinned: int) -> None:
        self._pinned = pinned
        self.start_over()

    @property
    def groups(self) -> int:
        if self._pinned:
            return self._pinned
        return self._trials[self._size].groups if self._size else 1

    def start_over(self) -> None:
        """Another drafter: what was found out is past."""
        self._size = 0
        self._trials: defaultdict[int, _Trials] = defaultdict(_Trials)

    def turn_to(self, sessions: int) -> None:
        """So many are drafted for in this round; one alone is a group of its own."""
        self._size = size_class(sessions)

    def saw(self, tokens: int, seconds: float) -> None:
        """A step of sessions that were waited for gave `tokens`, `seconds` after the step before it had ended."""
        if self._size and not self._pinned:
            self._trials[self._size].saw(tokens, seconds)
