"""The loop: schedule, run, decide, commit, tell everyone; again.

One thread. A step runs inline and between two steps the event loop serves clients and drafters. When nothing can run
without a drafter's answer, the loop sleeps until something happens or the drafter's time is up. Behind plain rows a
runner that can do so gets the next ones before anybody has read what came of these: then tokens are told, and clients
served, while it computes.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from draftwood_verifier import commit as rounds
from draftwood_verifier.commit import Commit
from draftwood_verifier.drafting import DrafterLink, DrafterPool
from draftwood_verifier.pace import Pace
from draftwood_verifier.parallel.groups import GroupLost
from draftwood_verifier.plan import AheadRunner, CommitPlan, DraftPlan, Path, Runner
from draftwood_verifier.record import StepObserver, StepRecord
from draftwood_verifier.scheduler import Scheduler, Segment, SegmentKind, Step
from draftwood_verifier.sequence import Sequence
from draftwood_wire.tree import TokenTree

_LOG = logging.getLogger(__name__)
# Turns of the event loop between two steps: a new call or a frame takes several from the socket to here. With one,
# a request that came during plain steps of others started 10 steps late, with four 3 to 4; a turn takes 10 us.
# More sequences make longer steps and more calls that come together: with four, the last of 32 calls sent at once
# began after 108 steps of the others, with forty before any of them was done.
_LEAST_TURNS = 4
_TURNS_PER_SEQUENCE = 2
# Turns that clients leave to the frames of drafters at most, while drafts are waited for, before their tokens go out:
# with 64 clients each of a drafter's frames waited for another round of writes to all of them, 5 ms a frame.
_FRAME_TURNS = 200


class StepFailed(Exception):
    """A step raised; the requests in it end with this, the others go on."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step from its launch to its commits."""

    step: Step
    launched_at: float
    ahead: AheadRunner | None  # that has been given it; None: it runs when it lands


class Engine:
    """Owns every request from `submit` to its last token."""

    def __init__(self, runner: Runner, scheduler: Scheduler, drafters: DrafterPool) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.drafters = drafters
        self.committed_tokens = 0
        self.steps = 0
        self.observers: list[StepObserver] = []
        self._pace = Pace(scheduler.policy)
        self._unlearned: deque[StepRecord] = deque()
        self._untold: deque[Commit] = deque()  # of which clients have not heard
        self._ahead = runner if isinstance(runner, AheadRunner) else None
        self._flights: deque[_Flight] = deque()
        self._landed_at = 0.0
        self._stopped = False
        self._waiter: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()

    def submit(self, sequence: Sequence) -> None:
        """Put a request in line; raises what `Scheduler.add` raises."""
        self.scheduler.add(sequence)
        self._idle.clear()
        self.wake()

    def cancel(self, sequence: Sequence) -> None:
        """Nobody reads this request any more: free all it holds at once."""
        self._end(sequence)
        self.wake()

    def join(self, link: DrafterLink) -> None:
        """A drafter has connected."""
        self._land_all()
        self._learn()
        self.drafters.join(link, self.scheduler.running)
        self._choose_features()
        self.wake()

    def leave(self, link: DrafterLink) -> None:
        """A drafter is gone; rounds that wait for it need not."""
        self._land_all()
        self._learn()
        self.drafters.leave(link, self.scheduler.running)
        self._choose_features()
        self.wake()

    def wake(self) -> None:
        """Something happened that may let a step run."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def stop(self) -> None:
        self._stopped = True
        self.wake()

    async def idle(self) -> None:
        """Return when no request is left."""
        await self._idle.wait()

    async def run(self) -> None:
        """Step until `stop`."""
        while not self._stopped:
            for sequence in self.scheduler.start_waiting():
                self.drafters.open(sequence)
            now = time.monotonic()
            decoding = self.scheduler.decoding(now)
            if any(link.lacks_head for link in self.drafters.links):
                self.drafters.build_trees(decoding, self._build_trees)
            held_until = None if decoding else self.scheduler.prompts_wait_until(now)
            step = self.scheduler.schedule(decoding) if held_until is None else None
            if step is None:
                await self._sleep(self.scheduler.next_deadline(now) if held_until is None else held_until)
            else:
                self._launch(step)
                while self._flights:
                    self._launch_behind()
                    self._land()
                    await self._serve()
                    # Only now: drafters and clients have something to do meanwhile.
                    self._learn()

    async def _serve(self) -> None:
        """Let drafters that are waited for and then clients have their turns."""
        if self.scheduler.next_deadline(time.monotonic()) is not None:
            await self._send_frames()
        self._tell_clients()
        for _ in range(max(_LEAST_TURNS, _TURNS_PER_SEQUENCE * len(self.scheduler.running))):
            await asyncio.sleep(0)
        self._tell_clients()  # of what has landed meanwhile, as a drafter came or went

    async def _send_frames(self) -> None:
        for _ in range(_FRAME_TURNS):
            if not self.drafters.sending:
                return
            await asyncio.sleep(0)

    def _tell_clients(self) -> None:
        while self._untold:
            commit = self._untold.popleft()
            commit.sequence.output.push(commit.tokens, commit.finish_reason)

    async def _sleep(self, deadline: float | None) -> None:
        if not self.scheduler.running and not self.scheduler.waiting:
            self._idle.set()
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if deadline is None else loop.call_later(deadline - time.monotonic(), self.wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _build_trees(self, plan: DraftPlan) -> list[TokenTree | None]:
        try:
            return self.runner.build_trees(plan)
        except GroupLost:
            raise
        except Exception:
            _LOG.exception("no trees for %d sessions; they decode plainly in this round", len(plan.wishes))
            return [None] * len(plan.wishes)

    def _launch(self, step: Step) -> None:
        launched_at = time.monotonic()
        ahead = self._ahead if step.is_plain else None
        if ahead is not None:
            try:
                ahead.launch(step.plan)
            except Exception:
                self._step_failed(step)
                return
        self._flights.append(_Flight(step, launched_at, ahead))

    def _launch_behind(self) -> None:
        """Queue the step after the one in flight, if it is known."""
        if self._stopped or len(self._flights) != 1 or self._flights[0].ahead is None:
            return
        step = self.scheduler.behind(self._flights[0].step)
        if step is not None:
            self._launch(step)

    def _land_all(self) -> None:
        """What follows is about sessions as they are."""
        while self._flights:
            self._land()

    def _land(self) -> None:
        """End the first step in flight."""
        if not self._flights:
            return
        flight = self._flights.popleft()
        step = flight.step
        # One that was queued behind another began when that one ended.
        started_at = max(flight.launched_at, self._landed_at)
        try:
            paths = self.runner.execute(step.plan) if flight.ahead is None else flight.ahead.collect()
            executed_at = time.monotonic()
            commits = self._decide(step, paths)
            self._tell_drafters(step, commits)
            kept = self._kept_rows(step, commits)
            if len(kept.rows):
                self.runner.commit(kept)
        except GroupLost:
            raise
        except Exception:
            self._step_failed(step)
            return
        self.steps += 1
        for segment in step.segments:
            if segment.kind is SegmentKind.PREFILL:
                segment.sequence.computed += segment.rows
                self.scheduler.publish(segment.sequence)
        for commit in commits:
            try:
                self._settle(commit)
            except Exception:
                _LOG.exception("session %d failed", commit.sequence.session_id)
                self._fail(commit.sequence)
        self._report(step, commits, started_at, executed_at)

    def _step_failed(self, step: Step) -> None:
        """To be called while its exception is handled."""
        _LOG.exception("a step failed; its %d segments end", len(step.segments))
        for sequence in {id(s.sequence): s.sequence for s in step.segments}.values():
            self._fail(sequence)

    def _report(self, step: Step, commits: list[Commit], started_at: float, executed_at: float) -> None:
        record = StepRecord(
            number=self.steps,
            started_at=started_at,
            executed_at=executed_at,
            device_s=self.runner.device_s,
            finished_at=time.monotonic(),
            segments=step.segments,
            commits=commits,
            decision=step.decision,
        )
        self._landed_at = record.finished_at
        if any(segment.kind is SegmentKind.DECODE for segment in step.segments):
            self.scheduler.decoded(record.finished_at - started_at)
        self._unlearned.append(record)
        for observer in self.observers:
            observer.step_done(record)

    def _decide(self, step: Step, paths: list[Path]) -> list[Commit]:
        """Rows of requests that have ended since the step was launched were in vain."""
        walks = zip(step.plan.walks, paths, strict=True)
        drawn = [(step.segments[walk.segment].sequence, path, walk.tree) for walk, path in walks]
        return [rounds.decide(sequence, path, tree=tree) for sequence, path, tree in drawn if not sequence.done]

    def _learn(self) -> None:
        """The budget, from what the last steps took and gave; nobody's request is worse off when it can't."""
        while self._unlearned:
            record = self._unlearned.popleft()
            try:
                self._pace.step_done(record)
            except Exception:
                _LOG.exception("the budget learned nothing from step %d", record.number)

    def _settle(self, commit: Commit) -> None:
        """Make a round true: tokens, cache keys."""
        sequence = commit.sequence
        rounds.apply(commit)
        self.committed_tokens += len(commit.tokens)
        self.scheduler.publish(sequence)
        self.drafters.committed(sequence)
        if commit.finish_reason is not None:
            self._end(sequence)
        self._untold.append(commit)

    def _tell_drafters(self, step: Step, commits: list[Commit]) -> None:
        if not self.drafters.links:
            return
        for segment in step.segments:
            if segment.kind is not SegmentKind.DECODE:
                self._hold_chunk(segment)
        told: list[Commit] = []
        for link in self.drafters.links:
            # A session that ends now hears SessionClosed, not features it has no use for.
            own = [c for c in commits if c.finish_reason is None and _is_with(c.sequence, link)]
            if own:
                rows = np.array([row for commit in own for row in commit.rows], np.int32)
                self.drafters.hold_commits(own, self.runner.features_later(rows, link.layer_ids))
                told += own
        if told:
            self.drafters.ask(told, lambda: self.scheduler.batch([commit.sequence for commit in told]))

    def _hold_chunk(self, segment: Segment) -> None:
        sequence, draft = segment.sequence, segment.sequence.draft
        link = self.drafters.link_of(sequence)
        if draft is None or link is None:
            return
        if segment.kind is SegmentKind.REPLAY:
            assert draft.replay is not None, "a replay ran that nobody asked for"
            rest = draft.replay[segment.rows :]
            draft.replay = rest or None
        rows = np.arange(segment.first_row, segment.first_row + segment.rows, dtype=np.int32)
        features = self.runner.features(rows, link.layer_ids)
        self.drafters.hold_chunk(sequence, segment.start, features, urgent=segment.kind is SegmentKind.REPLAY)

    def _kept_rows(self, step: Step, commits: list[Commit]) -> CommitPlan:
        rows: list[int] = []
        slots: list[int] = []
        page_size = self.scheduler.page_size
        for segment in step.segments:
            if segment.kind is SegmentKind.PREFILL:
                rows.extend(range(segment.first_row, segment.first_row + segment.rows))
                slots += _slots(segment.sequence.pages, segment.start, segment.rows, page_size)
        for commit in commits:
            rows += commit.rows
            slots += _slots(commit.sequence.pages, commit.base_len - 1, len(commit.rows), page_size)
        return CommitPlan(rows=np.array(rows, np.int32), slots=np.array(slots, np.int32))

    def _fail(self, sequence: Sequence) -> None:
        self._end(sequence)
        sequence.output.fail(StepFailed("the target failed in a step of this request"))

    def _end(self, sequence: Sequence) -> None:
        self.drafters.close(sequence)
        self.scheduler.remove(sequence)

    def _choose_features(self) -> None:
        layer_ids = {layer_id for link in self.drafters.links for layer_id in link.layer_ids}
        self.runner.set_feature_layers(tuple(sorted(layer_ids)))


def _is_with(sequence: Sequence, link: DrafterLink) -> bool:
    return sequence.draft is not None and sequence.draft.drafter is link


def _slots(pages: list[int], start: int, count: int, page_size: int) -> list[int]:
    return [pages[p // page_size] * page_size + p % page_size for p in range(start, start + count)]
