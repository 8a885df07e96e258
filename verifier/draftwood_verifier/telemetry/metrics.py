"""The verifier's metrics: counts kept here and read at a scrape, and histograms."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from draftwood_verifier.commit import Commit
from draftwood_verifier.engine import Engine
from draftwood_verifier.record import StepRecord
from draftwood_verifier.telemetry.history import SessionHistory
from draftwood_verifier.telemetry.records import RequestEnded
from draftwood_verifier.telemetry.rounds import Outcome, PlainReason, Round, regret
from draftwood_wire import telemetry as names
from draftwood_wire.metering import Meters, Reading


class Traffic(Protocol):
    """Bytes of frames on Speculate since the start."""

    sent_bytes: int
    received_bytes: int


@dataclass(kw_only=True, slots=True)
class Totals:
    """Counts since the start; tokens = first_tokens + accepted_nodes + rounds + plain steps of all reasons."""

    requests: Counter[str] = field(default_factory=Counter)  # by gRPC status
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first_tokens: int = 0
    rounds: int = 0
    plain_steps: Counter[PlainReason] = field(default_factory=Counter)
    verified_nodes: int = 0
    accepted_nodes: int = 0
    trees: Counter[int] = field(default_factory=Counter)  # by depth
    paths: Counter[int] = field(default_factory=Counter)  # accepted ones, by depth
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    steps: int = 0


class VerifierMetrics:
    """Fed by the telemetry thread; scrapes read the copy that `freeze` makes, so that one scrape's counts agree."""

    def __init__(self, meters: Meters) -> None:
        self._totals = Totals()
        self._frozen = Totals()
        self._duration = meters.histogram(names.REQUEST_DURATION)
        self._first_token = meters.histogram(names.TIME_TO_FIRST_TOKEN)
        self._per_token = meters.histogram(names.TIME_PER_OUTPUT_TOKEN)
        self._latency = meters.histogram(names.INTER_TOKEN_LATENCY)
        self._queue = meters.histogram(names.QUEUE_TIME)
        self._length = meters.histogram(names.ACCEPTED_LENGTH)
        self._step = meters.histogram(names.STEP_DURATION)
        self._verify = meters.histogram(names.VERIFY_DURATION)
        self._device = meters.histogram(names.DEVICE_DURATION)
        self._budget = meters.histogram(names.BUDGET_NODES)
        self._regret = meters.histogram(names.BUDGET_REGRET)
        self._round_trip = meters.histogram(names.DRAFT_ROUND_TRIP)
        self._wait = meters.histogram(names.DRAFT_WAIT)
        self._observe_totals(meters)

    def freeze(self) -> None:
        self._frozen = copy.deepcopy(self._totals)

    def step(self, step: StepRecord, firsts: list[Commit], rounds: list[Round]) -> None:
        totals = self._totals
        totals.steps += 1
        self._step(step.finished_at - step.started_at)
        self._verify(step.executed_at - step.started_at)
        if step.device_s:
            self._device(step.device_s)
        if step.decision is not None and rounds:
            self._budget(step.decision.nodes)
            self._regret(regret(step.decision, rounds))
        for commit in firsts:
            totals.tokens += len(commit.tokens)
            totals.first_tokens += 1
            totals.cached_tokens += commit.sequence.cached_tokens
            totals.prompt_tokens += commit.sequence.prompt_len - commit.sequence.cached_tokens
        for done in rounds:
            self._count(done)
        self._time_drafts(rounds)

    def end(self, ended: RequestEnded, history: SessionHistory | None) -> None:
        self._totals.requests[ended.status] += 1
        self._duration(ended.ended_at - ended.arrived_at)
        if history is None:
            return
        self._queue(history.started_at - ended.arrived_at)
        if history.first_token_at:
            self._first_token(history.first_token_at - ended.arrived_at)
        if history.first_token_at and history.tokens > 1:
            self._per_token((history.last_commit_at - history.first_token_at) / (history.tokens - 1))

    def _count(self, done: Round) -> None:
        totals, commit = self._totals, done.commit
        totals.tokens += done.tokens
        totals.outcomes[done.outcome] += 1
        self._latency((done.ended_at - done.started_at) / done.tokens)
        if done.reason is not None:
            totals.plain_steps[done.reason] += 1
            return
        totals.rounds += 1
        totals.verified_nodes += commit.nodes_verified
        totals.accepted_nodes += done.accepted
        self._length(done.tokens)
        totals.trees[done.depth] += 1
        totals.paths[done.accepted] += 1

    def _time_drafts(self, rounds: list[Round]) -> None:
        """The slowest of a step: its sessions are drafted for, and waited for, together."""
        asked = [done for done in rounds if done.commit.asked_at]
        if asked:
            self._wait(max(done.wait_s for done in asked))
        trips = [r.commit.answered_at - r.commit.asked_at for r in asked if r.commit.answered_at]
        if trips:
            self._round_trip(max(trips))

    def _observe_totals(self, meters: Meters) -> None:
        def number(field_name: str) -> Callable[[], float]:
            return lambda: float(getattr(self._frozen, field_name))

        for metric, field_name in (
            (names.TOKENS, "tokens"),
            (names.FIRST_TOKENS, "first_tokens"),
            (names.ROUNDS_RUN, "rounds"),
            (names.VERIFIED_NODES, "verified_nodes"),
            (names.ACCEPTED_NODES, "accepted_nodes"),
            (names.STEPS, "steps"),
        ):
            meters.observe_value(metric, number(field_name))
        meters.observe(names.REQUESTS, lambda: _labelled(names.RPC_STATUS, self._frozen.requests))
        meters.observe(
            names.PROMPT_TOKENS,
            lambda: [
                (self._frozen.cached_tokens, {names.CACHED: "true"}),
                (self._frozen.prompt_tokens, {names.CACHED: "false"}),
            ],
        )
        meters.observe(names.PLAIN_STEPS_RUN, lambda: _by_reason(self._frozen.plain_steps))
        meters.observe(names.DEPTH_PROPOSED, lambda: _labelled(names.DEPTH, _reached(self._frozen.trees)))
        meters.observe(names.DEPTH_ACCEPTED, lambda: _labelled(names.DEPTH, _reached(self._frozen.paths)))

    def proposals(self) -> dict[str, int]:
        """Drafts that rounds asked for, by what became of them."""
        outcomes = self._frozen.outcomes
        return {outcome.value: outcomes[outcome] for outcome in (Outcome.USED, Outcome.UNUSED, Outcome.LATE)}


def observe_engine(meters: Meters, engine: Engine, traffic: Traffic, metrics: VerifierMetrics) -> None:
    """Gauges and counts that the loop owns. A scrape's thread takes one number or one length of each, nothing else:
    it may be a step old, and is never half of something."""
    scheduler, pool, allocator = engine.scheduler, engine.drafters, engine.scheduler.allocator

    def proposals() -> Reading:
        counters = pool.counters
        arrived = {"rerooted": counters.rerooted, "stale": counters.stale, "refused": counters.refused}
        return _labelled(names.OUTCOME, metrics.proposals() | arrived)

    def pages() -> Reading:
        free = allocator.available
        return _labelled(names.STATE, {"free": free, "used": allocator.total - free})

    meters.observe(names.PROPOSALS, proposals)
    meters.observe(names.KV_PAGES, pages)
    meters.observe(
        names.ACTIVE_REQUESTS,
        lambda: _labelled(names.STATE, {"running": len(scheduler.running), "waiting": len(scheduler.waiting)}),
    )
    meters.observe(
        names.SPECULATE_BYTES,
        lambda: _labelled(names.DIRECTION, {"sent": traffic.sent_bytes, "received": traffic.received_bytes}),
    )
    meters.observe_value(names.DRAFTERS, lambda: len(pool.links))
    meters.observe_value(names.DRAFTED_SESSIONS, lambda: sum(len(link.sessions) for link in tuple(pool.links)))


def _reached(depths: Counter[int]) -> dict[int, int]:
    """How many went to each depth or further, from depth 1 to the deepest."""
    return {
        depth: sum(count for deepest, count in depths.items() if deepest >= depth)
        for depth in range(1, max(depths, default=0) + 1)
    }


def _labelled(label: str, counts: Mapping[str, int] | Mapping[int, int]) -> Reading:
    return [(count, {label: key}) for key, count in counts.items()]


def _by_reason(counts: Mapping[PlainReason, int]) -> Reading:
    """All reasons, so that a series is there before it first counts."""
    return [(counts.get(reason, 0), {names.REASON: reason.value}) for reason in PlainReason]
