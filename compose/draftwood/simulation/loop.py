"""The serving loop in simulated time: closed-loop clients, steps, drafts, waits and prefill.

A step takes all decoding sessions and up to a chunk of prompt rows. Where speculation is on, all sessions wait for the
drafter's answers, as in the scheduler; prompts go on meanwhile, which in the scheduler they no longer do. The drafter
drafts for all that it was asked for in one batch, one batch after the other. Auto asks for drafts when trees of the
usual kinds are expected to pay, and then looks at as many nodes of the trees that came as pay.
"""

import random
from dataclasses import dataclass, field

from draftwood.bench.workload import log_uniform
from draftwood.simulation.acceptance import DraftTree
from draftwood.simulation.policy import SimulatedMode, allocate, node_budget
from draftwood.simulation.profile import Profile

# Committed rounds a client on average before the clock starts, and while it runs.
_WARM_UP_ROUNDS = 60
_ROUNDS = 400


@dataclass(frozen=True, kw_only=True)
class Prediction:
    tokens_per_s: float
    accepted_length: float
    plain_steps: float


@dataclass(kw_only=True)
class _Session:
    prompt_left: int
    tokens_left: int
    context: int
    ready_at: float = 0.0
    tree: DraftTree | None = None


@dataclass(kw_only=True)
class _Tally:
    tokens: int = 0
    rounds: int = 0
    committed: int = 0
    plain_rounds: int = 0


def simulate(profile: Profile, mode: SimulatedMode, clients: int, seed: int = 0) -> Prediction:
    """The same arguments give the same prediction. No more than the profile's max_batch clients run at once."""
    return _Loop(profile, mode, clients, seed).run()


@dataclass(kw_only=True)
class _Batch:
    """A step in the making."""

    decoding: list[_Session]
    nodes: list[int]
    chunks: list[tuple[_Session, int]] = field(default_factory=list)


class _Loop:
    def __init__(self, profile: Profile, mode: SimulatedMode, clients: int, seed: int) -> None:
        self._profile = profile
        self._mode = mode
        self._draws = random.Random(f"{seed}:{clients}:{mode.name}")
        self._shares = [kind.share for kind in profile.acceptance]
        self._clients = min(clients, profile.max_batch)
        self._sessions = [self._open(begun=True) for _ in range(self._clients)]
        self._now = 0.0
        self._drafter_free_at = 0.0
        self._tally = _Tally()

    def run(self) -> Prediction:
        self._until(_WARM_UP_ROUNDS * self._clients)
        start, self._tally = self._now, _Tally()
        self._until(_ROUNDS * self._clients)
        tally = self._tally
        return Prediction(
            tokens_per_s=tally.tokens / (self._now - start),
            accepted_length=tally.committed / tally.rounds,
            plain_steps=tally.plain_rounds / tally.rounds,
        )

    def _until(self, rounds: int) -> None:
        while self._tally.rounds < rounds:
            self._turn()

    def _turn(self) -> None:
        decoding = [s for s in self._sessions if not s.prompt_left]
        waiting_until = max((s.ready_at for s in decoding), default=0.0)
        chunks = self._chunks()
        if decoding and waiting_until <= self._now:
            self._step(_Batch(decoding=decoding, nodes=self._choose(decoding), chunks=chunks))
        elif chunks:
            self._step(_Batch(decoding=[], nodes=[], chunks=chunks))
        else:
            self._now = waiting_until

    def _step(self, batch: _Batch) -> None:
        rows = len(batch.decoding) + sum(batch.nodes) + sum(rows for _, rows in batch.chunks)
        sessions = batch.decoding + [session for session, _ in batch.chunks]
        context = sum(s.context for s in sessions) / len(sessions)
        self._now += self._profile.step.of(rows, context, len(sessions))
        told = [s for s, nodes in zip(batch.decoding, batch.nodes, strict=True) if not self._commit(s, nodes)]
        for session, chunk in batch.chunks:
            session.prompt_left -= chunk
            session.context += chunk
            if not session.prompt_left and not self._deliver(session, 1):
                told.append(session)
        self._ask(told)

    def _commit(self, session: _Session, nodes: int) -> bool:
        """One round; returns whether the request has ended."""
        committed = 1 if session.tree is None else session.tree.walk(nodes, self._draws)
        committed = min(committed, session.tokens_left)
        self._tally.rounds += 1
        self._tally.plain_rounds += nodes == 0
        self._tally.committed += committed
        return self._deliver(session, committed)

    def _deliver(self, session: _Session, tokens: int) -> bool:
        session.tree = None
        session.tokens_left -= tokens
        session.context += tokens
        self._tally.tokens += tokens
        if session.tokens_left > 0:
            return False
        self._sessions[self._sessions.index(session)] = self._open(begun=False)
        return True

    def _ask(self, sessions: list[_Session]) -> None:
        """Ask for the sessions' drafts, if the mode wants any; they are ready when the answers are back."""
        trees = self._mode.trees
        if not sessions or not trees or not (self._mode.fixed or self._pays()):
            for session in sessions:
                session.ready_at = self._now
            return
        one_way_s = self._profile.round_trip_s / 2
        start = max(self._now + one_way_s, self._drafter_free_at)
        self._drafter_free_at = start + self._profile.draft.of(len(sessions))
        for session in sessions:
            session.ready_at = self._drafter_free_at + one_way_s
            session.tree = self._draws.choices(trees, self._shares)[0]

    def _pays(self) -> bool:
        """Whether trees of the usual kinds would pay, before anyone knows which kinds will come."""
        decoding = [s for s in self._sessions if not s.prompt_left]
        trees = [self._mode.usual_tree(self._shares)] * len(decoding)
        return node_budget(trees, lambda rows: self._cost(decoding, rows), self._wait_s()) > 0

    def _choose(self, decoding: list[_Session]) -> list[int]:
        trees = [s.tree for s in decoding if s.tree is not None]
        if not trees:
            return [0] * len(decoding)
        if self._mode.fixed:
            return [0 if s.tree is None else len(s.tree.scores) for s in decoding]
        bare = len(decoding) - len(trees)
        budget = node_budget(trees, lambda rows: self._cost(decoding, rows + bare), self._wait_s())
        counts = iter(allocate(trees, budget))
        return [0 if s.tree is None else next(counts) for s in decoding]

    def _wait_s(self) -> float:
        decoding = sum(not s.prompt_left for s in self._sessions)
        return self._profile.round_trip_s + self._profile.draft.of(max(1, decoding))

    def _cost(self, decoding: list[_Session], rows: int) -> float:
        context = sum(s.context for s in decoding) / len(decoding)
        return self._profile.step.of(rows, context, len(decoding))

    def _chunks(self) -> list[tuple[_Session, int]]:
        budget = self._profile.prefill_chunk
        chunks = []
        for session in self._sessions:
            rows = min(budget, session.prompt_left)
            if rows:
                chunks.append((session, rows))
                budget -= rows
        return chunks

    def _open(self, *, begun: bool) -> _Session:
        """A new request; of the first ones, a random part is over already."""
        prompt = log_uniform(self._draws, *self._profile.prompt_tokens)
        output = log_uniform(self._draws, *self._profile.output_tokens)
        done = int(self._draws.random() * output) if begun else 0
        left = 0 if begun else prompt
        return _Session(prompt_left=left, tokens_left=output - done, context=0 if left else prompt + done)
