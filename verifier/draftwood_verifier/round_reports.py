"""What a client that asks for it is told about the rounds of its request: trees, paths, times."""

from dataclasses import dataclass

from draftwood_verifier.commit import Commit
from draftwood_verifier.engine import Engine
from draftwood_verifier.record import StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundReport:
    """One round; the fields are explained in the schema."""

    commit: Commit
    draft_wait_ms: float
    verify_ms: float


class RoundLog:
    """Keeps the rounds of the requests that are watched until they are taken; sees no step while there are none.

    A step is logged before any reader of its tokens wakes, so tokens and reports that are taken together agree.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: dict[int, list[RoundReport]] = {}  # by session id

    def watch(self, session_id: int) -> None:
        if not self._pending:
            self._engine.observers.append(self)
        self._pending[session_id] = []

    def forget(self, session_id: int) -> None:
        """Stop watching; without effect on a session that is not watched."""
        if self._pending.pop(session_id, None) is not None and not self._pending:
            self._engine.observers.remove(self)

    def take(self, session_id: int) -> list[RoundReport]:
        """The reports since the last call; none of a session that is not watched."""
        taken = self._pending.get(session_id, [])
        if taken:
            self._pending[session_id] = []
        return taken

    def step_done(self, record: StepRecord) -> None:
        for commit in record.commits:
            reports = self._pending.get(commit.sequence.session_id)
            if reports is not None:
                reports.append(report_of(commit, record))


def report_of(commit: Commit, record: StepRecord) -> RoundReport:
    waited_until = commit.answered_at or record.started_at
    return RoundReport(
        commit=commit,
        draft_wait_ms=1000 * (waited_until - commit.asked_at) if commit.waited else 0.0,
        verify_ms=1000 * (record.executed_at - record.started_at),
    )
