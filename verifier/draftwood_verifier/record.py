"""What one step did, for all who watch the loop: the budget's own eyes, telemetry, reports."""

from dataclasses import dataclass
from typing import Protocol

from draftwood_verifier.budget.policy import Decision
from draftwood_verifier.commit import Commit
from draftwood_verifier.scheduler import Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """Times are time.monotonic."""

    number: int  # from 1
    started_at: float
    executed_at: float  # forward, sampling and walks were done
    device_s: float  # of which the GPU says that it took so long; 0 on a CPU
    finished_at: float  # commits are in the pages, drafters and clients are told
    segments: list[Segment]
    commits: list[Commit]
    decision: Decision | None


class StepObserver(Protocol):
    """Wants to know of every step. Called inside the loop: keep it to a few microseconds, never block or raise."""

    def step_done(self, record: StepRecord) -> None: ...
