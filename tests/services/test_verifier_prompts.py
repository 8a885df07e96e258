"""Prompts that come while drafts are awaited: read beside the decoding that follows, unless that is too far off."""

import asyncio

import pytest

from draftwood_verifier.drafting import DrafterPool
from draftwood_verifier.record import StepRecord
from draftwood_verifier.scheduler import Scheduler, SegmentKind
from draftwood_verifier.sequence import FinishReason, TokenStream
from draftwood_wire.tree import EMPTY_TREE, TokenTree
from draftwood_wire.v1 import sampling_pb2
from tests.services.fake_target import FakeTarget
from tests.services.scripted_drafter import DraftedSession
from tests.services.verifier_harness import collect, oracle_script, request, run, serving

ONE, TWO = [3, 0, 5, 0, 7], [2, 1, 2]
FOREVER_S = 30.0


class Kinds:
    """Implements `StepObserver`: of each step, who decoded and whether a prompt was read."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def step_done(self, record: StepRecord) -> None:
        kinds = [segment.kind for segment in record.segments]
        self.seen.append((kinds.count(SegmentKind.DECODE), SegmentKind.PREFILL in kinds))


async def second_prompt_meets_a_slow_draft(kinds: Kinds, *, draft_comes_first: bool) -> None:
    """One request's second draft is under way when another request comes; the draft comes when told to."""
    target = FakeTarget(pages=64, page_size=4)
    asked, comes = asyncio.Event(), asyncio.Event()

    async def script(session: DraftedSession) -> TokenTree:
        if session.tokens[: len(ONE)] == ONE and len(session.commits) == 2:
            asked.set()
            await comes.wait()
        return EMPTY_TREE

    async with serving(target=target) as harness, harness.drafter(script):
        harness.service.engine.observers.append(kinds)
        first = asyncio.create_task(collect(harness.stub.Generate(request(ONE, 4))))
        await asked.wait()
        second = asyncio.create_task(collect(harness.stub.Generate(request(TWO, 1))))
        if draft_comes_first:
            while len(harness.service.scheduler.running) < 2:
                await asyncio.sleep(0)
            comes.set()
        else:
            assert (await second).tokens == target.plain(TWO, 1)
            comes.set()
        assert (await first).tokens == target.plain(ONE, 4)
        assert (await second).tokens == target.plain(TWO, 1)
        await harness.idle()


def test_a_prompt_is_read_beside_the_decoding_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Scheduler.decoded
    monkeypatch.setattr(Scheduler, "decoded", lambda self, _: decoded(self, FOREVER_S))
    kinds = Kinds()
    run(second_prompt_meets_a_slow_draft(kinds, draft_comes_first=True))
    assert kinds.seen == [(0, True), (1, False), (1, True), (1, False)]


def test_a_prompt_does_not_wait_for_a_draft_that_takes_longer_than_a_step() -> None:
    kinds = Kinds()
    run(second_prompt_meets_a_slow_draft(kinds, draft_comes_first=False))
    assert kinds.seen == [(0, True), (1, False), (0, True), (1, False), (1, False)]


@pytest.mark.parametrize("mode", [sampling_pb2.SPECULATION_MODE_TREE, sampling_pb2.SPECULATION_MODE_OFF])
def test_clients_leave_their_turn_to_frames_only_while_drafts_are_waited_for(
    mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that is stuck, with frames that never leave, costs those who do not wait for it nothing."""
    looks: list[int] = []
    told_after: list[int] = []

    def sending(_: DrafterPool) -> bool:
        looks.append(1)
        return len(looks) % 4 != 0  # the frames of a step are on the wire when it is looked at for the fourth time

    def push(stream: TokenStream, tokens: list[int], reason: FinishReason | None) -> None:
        told_after.append(len(looks))
        pushed(stream, tokens, reason)

    pushed = TokenStream.push
    monkeypatch.setattr(DrafterPool, "sending", property(sending))
    monkeypatch.setattr(TokenStream, "push", push)

    async def body() -> None:
        target = FakeTarget(pages=64, page_size=4)
        async with serving(target=target) as harness, harness.drafter(oracle_script(target)):
            assert (await harness.generate(ONE, 20, mode=mode)).tokens == target.plain(ONE, 20)

    run(body())
    waited = told_after[:-1]  # nobody waits for a draft after the last round
    assert waited == ([4 * (step + 1) for step in range(len(waited))] if looks else [0] * 19)
    assert bool(looks) == (mode == sampling_pb2.SPECULATION_MODE_TREE)
