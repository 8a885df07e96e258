"""What a step and a draft cost, as tables of measured or estimated points with straight lines between them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of one step of the target: `seconds[i][j]` for rows[i] rows whose sessions hold context[j] tokens on
    average, and `session_seconds[j]` more for each session in the step.
    """

    rows: tuple[float, ...]
    context: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]
    session_seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_axis("step.rows", self.rows)
        _check_axis("step.context", self.context)
        if len(self.seconds) != len(self.rows) or any(len(line) != len(self.context) for line in self.seconds):
            raise ValueError(f"step.seconds: must have {len(self.rows)} lines of {len(self.context)}")
        if len(self.session_seconds) != len(self.context):
            raise ValueError(f"step.session_seconds: must have {len(self.context)} numbers")

    def of(self, rows: float, context: float, sessions: int) -> float:
        by_rows = [interpolate(self.context, line, context) for line in self.seconds]
        return interpolate(self.rows, by_rows, rows) + sessions * interpolate(
            self.context, self.session_seconds, context
        )


@dataclass(frozen=True, kw_only=True)
class DraftCost:
    """Seconds of one draft by the number of sessions in it, without the way to the drafter and back."""

    sessions: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_axis("draft.sessions", self.sessions)
        if len(self.seconds) != len(self.sessions):
            raise ValueError(f"draft.seconds: must have {len(self.sessions)} numbers")

    def of(self, sessions: int) -> float:
        return interpolate(self.sessions, self.seconds, sessions)


def interpolate(points: Sequence[float], values: Sequence[float], at: float) -> float:
    """Straight lines between points; constant before the first, the last line goes on after the last."""
    if len(points) == 1 or at <= points[0]:
        return values[0]
    right = next((i for i, point in enumerate(points) if point >= at), len(points) - 1)
    left = right - 1
    share = (at - points[left]) / (points[right] - points[left])
    return values[left] + share * (values[right] - values[left])


def _check_axis(name: str, points: Sequence[float]) -> None:
    if not points or any(a >= b for a, b in itertools.pairwise(points)):
        raise ValueError(f"{name}: must rise and not be empty")
