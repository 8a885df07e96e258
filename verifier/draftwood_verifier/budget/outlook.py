"""When to look again at what drafting would give a batch of some size, after it gave too little."""

from dataclasses import dataclass

# Plain rounds before the next look, enough to refresh the plain side of the costs; they double while drafting would
# give too little.
_FIRST_PAUSE = 16
_LONGEST_PAUSE = 4096
# Rounds from an answer to the look at it.
_ANSWERED_ROUNDS = 8
# Waits seen from outside, beside plain steps, are longer than real ones, and what was known of them gets old: with
# every look that was in vain a smaller share of them has to pay for a trial.
_HOPE = 0.7


@dataclass(slots=True)
class Outlook:
    """Of one batch size: a load that swings between two sizes is no news at either. Rounds are counted in all."""

    next_look: int = 0
    hope: float = 1.0  # share of the wait that the next look believes in
    _pause: int = _FIRST_PAUSE

    def found_nothing(self, now: int) -> None:
        """A look was in vain."""
        self.hope *= _HOPE
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.next_look = now + self._pause

    def gave_up(self, now: int, *, soon: bool) -> None:
        """Speculation was on and has not paid; `soon`: it hardly ever did."""
        self.hope = _HOPE
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if soon else _FIRST_PAUSE
        self.next_look = now + self._pause

    def tried(self) -> None:
        """Speculation is on: what comes of it is known from now on, and not only hoped."""
        self.hope = _HOPE

    def answered(self, now: int) -> None:
        """There is something new to look at."""
        self.next_look = min(self.next_look, now + _ANSWERED_ROUNDS)
