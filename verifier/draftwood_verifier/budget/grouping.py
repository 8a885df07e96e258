"""Whether a drafter's sessions go together, or as two groups: one is verified while the other is drafted for.

Two groups hide the drafts behind the target's work, and pay for it with smaller batches; where both share a processor
nothing is hidden. So both are tried in turn, in the very load at hand, and the quicker one stays for a while.
"""

from dataclasses import dataclass

# Steps of a window, windows of a trial (one and two groups in turn), and steps before the next trial.
_WINDOW = 24
_WINDOWS = 6
_FIRST_REST = 256
_LONGEST_REST = 16_384
# Two groups have to be this much better: the trial is short and the machine is never quiet.
_GAIN = 1.03


@dataclass(slots=True)
class _Tally:
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Grouping:
    """`groups` is 1 or 2; pinned to what is given, decided by trial when that is 0."""

    def __init__(self, pinned: int) -> None:
        self.groups = pinned or 1
        self._pinned = pinned != 0
        self._rest = _FIRST_REST
        self.start_over()

    def start_over(self) -> None:
        """Another load or another drafter: what was found out is past."""
        if not self._pinned:
            self.groups = 1
        self._rest = _FIRST_REST
        self._resting = _FIRST_REST // 4
        self._clear()

    def saw(self, tokens: int, seconds: float) -> None:
        """A step of sessions that were waited for gave `tokens`, `seconds` after the step before it had ended."""
        if self._pinned:
            return
        if self._resting:
            self._resting -= 1
            return
        self._tallies[self.groups].tokens += tokens
        self._tallies[self.groups].seconds += seconds
        self._steps += 1
        if self._steps == _WINDOW * _WINDOWS:
            self._decide()
        elif self._steps % _WINDOW == 0:
            self.groups = 3 - self.groups

    def _decide(self) -> None:
        better = 2 if self._tallies[2].rate > _GAIN * self._tallies[1].rate else 1
        self.groups = better
        self._resting = self._rest
        self._rest = min(2 * self._rest, _LONGEST_REST)
        self._clear()

    def _clear(self) -> None:
        self._tallies = {1: _Tally(), 2: _Tally()}
        self._steps = 0
