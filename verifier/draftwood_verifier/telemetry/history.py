"""What a session has been through so far, put together from the steps that it was in."""

from dataclasses import dataclass

from draftwood_verifier.commit import Commit
from draftwood_verifier.record import StepRecord
from draftwood_verifier.telemetry.records import RequestEnded
from draftwood_verifier.telemetry.rounds import Outcome, Round, take_apart

# More than can run at once; reached only if ends of requests were lost.
_MAX_SESSIONS = 16_384


@dataclass(kw_only=True, slots=True)
class SessionHistory:
    """Times are time.monotonic, 0 when it did not come to that; totals are over the rounds after the first token."""

    started_at: float  # the first step that worked on it
    first_token_at: float = 0.0
    last_commit_at: float = 0.0
    tokens: int = 0
    rounds: int = 0  # with a tree
    plain_steps: int = 0
    nodes: int = 0
    accepted: int = 0
    late: int = 0
    wait_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0

    def add(self, done: Round) -> None:
        nodes = done.commit.nodes_verified
        self.last_commit_at = done.ended_at
        self.tokens += done.tokens
        self.rounds += nodes > 0
        self.plain_steps += nodes == 0
        self.nodes += nodes
        self.accepted += done.accepted
        self.late += done.outcome is Outcome.LATE
        self.wait_s += done.wait_s
        self.verify_s += done.verify_s
        self.overhead_s += done.overhead_s


class Histories:
    """Of all sessions that run."""

    def __init__(self) -> None:
        self._sessions: dict[int, SessionHistory] = {}

    def take(self, step: StepRecord) -> tuple[list[Commit], list[Round]]:
        """Bring the step's sessions up to date; returns commits of first tokens, and rounds."""
        for segment in step.segments:
            if segment.sequence.session_id not in self._sessions:
                self._open(segment.sequence.session_id, step.started_at)
        firsts: list[Commit] = []
        rounds: list[Round] = []
        for commit in step.commits:
            history = self._sessions[commit.sequence.session_id]
            if commit.round == 0:
                history.first_token_at = history.last_commit_at = step.finished_at
                history.tokens += len(commit.tokens)
                firsts.append(commit)
            else:
                # Only a session whose earlier records were lost has no last commit.
                last_at = history.last_commit_at or step.started_at
                done = take_apart(commit, step, last_at)
                history.add(done)
                rounds.append(done)
        return firsts, rounds

    def end(self, ended: RequestEnded) -> SessionHistory | None:
        """Forget a session; None when no step has worked on it."""
        return self._sessions.pop(ended.sequence.session_id, None) if ended.sequence else None

    def _open(self, session_id: int, now: float) -> None:
        if len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session_id] = SessionHistory(started_at=now)
