"""Plain steps queued behind plain steps, over loopback: tokens, pages and drafters are as without."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import grpc
import pytest

from draftwood_verifier.budget.policy import Ask
from draftwood_verifier.record import StepRecord
from draftwood_wire.v1 import sampling_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.ahead_target import AheadTarget
from tests.services.verifier_harness import Harness, check_features, joined, oracle_script, request, run, serving

PROMPT = [3, 0, 5, 0, 7]


@dataclass
class Records:
    """Implements `StepObserver`."""

    seen: list[StepRecord]

    def step_done(self, record: StepRecord) -> None:
        self.seen.append(record)


async def check(harness: Harness, prompt: list[int], max_tokens: int, **fields: Any) -> None:
    reply = await harness.generate(prompt, max_tokens, **fields)
    assert reply.tokens == harness.target.plain(prompt, max_tokens, **fields)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 20])
def test_one_alone(max_tokens: int) -> None:
    async def body() -> None:
        target = AheadTarget(pages=64, page_size=4)
        async with serving(target=target) as harness:
            records: list[StepRecord] = []
            harness.service.engine.observers.append(Records(records))
            reply = await harness.generate(PROMPT, max_tokens)
            assert reply.tokens == target.plain(PROMPT, max_tokens)
            assert len(records) == max_tokens
            # Steps do not overlap, as far as anybody is told: what they cost is counted once.
            assert all(before.finished_at <= after.started_at for before, after in pairwise(records))
            assert reply.finish_reason == pb.FINISH_REASON_LENGTH
            # All but the prompt's own token and the first plain row; no row is run in vain where the end is known.
            assert target.behind == max(0, max_tokens - 2)
            assert target.steps == max_tokens
            await harness.idle()

    run(body())


def test_an_end_that_nobody_foresaw() -> None:
    async def body() -> None:
        target = AheadTarget(pages=64, page_size=4)
        plain = target.plain(PROMPT, 20)
        target.eos_token_ids = (plain[6],)
        expected = target.plain(PROMPT, 20, stop_ids=[plain[6]])
        async with serving(target=target) as harness:
            reply = await harness.generate(PROMPT, 20)
            assert (reply.tokens, reply.finish_reason) == (expected, pb.FINISH_REASON_STOP)
            await harness.idle()
            assert target.steps == len(expected) + 1
            # What was written behind the end is nobody's: the pages serve others, the cached ones too.
            await check(harness, [*PROMPT, *expected, 1], 10)
            await check(harness, list(range(20)), 30, temperature=0.8, seed=4)
            await harness.idle()

    run(body())


def test_many_come_and_go() -> None:
    """Lengths, seeds and arrivals by chance, more than run at once, some broken off."""
    draws = random.Random(1)

    async def body() -> None:
        target = AheadTarget(pages=60, page_size=4)
        target.eos_token_ids = (11,)
        async with serving(target=target, pages=60, max_batch=5) as harness:

            async def ask(number: int) -> None:
                prompt = [draws.randrange(24) for _ in range(draws.randrange(1, 30))]
                length, seed = draws.randrange(1, 40), draws.randrange(100)
                temperature, broken_off = draws.choice([0.0, 0.8]), draws.random() < 0.2
                for _ in range(number // 4):
                    await asyncio.sleep(0)
                call = harness.stub.Generate(request(prompt, length, temperature=temperature, seed=seed))
                expected = target.plain(prompt, length, temperature=temperature, seed=seed, stop_ids=[11])
                tokens: list[int] = []
                async for message in call:
                    tokens += message.token_ids
                    if broken_off and len(tokens) > 3:
                        call.cancel()
                        break
                assert tokens == expected[: len(tokens)]
                assert broken_off or len(tokens) == len(expected)

            await asyncio.gather(*(ask(number) for number in range(60)))
            await harness.idle()
            assert target.behind > 50

    run(body())


def test_a_step_that_fails_with_one_behind_it() -> None:
    async def body() -> None:
        target = AheadTarget(pages=64, page_size=4)
        async with serving(target=target) as harness:
            call = harness.stub.Generate(request(PROMPT, 30))
            seen: list[int] = []
            with pytest.raises(grpc.aio.AioRpcError, match="the target failed"):
                await read_until_it_fails(call, target, seen)
            assert seen == target.plain(PROMPT, 30)[: len(seen)]
            await harness.idle()
            await check(harness, PROMPT, 20)

    run(body())


def test_a_drafter_that_joins_is_told_all() -> None:
    async def body() -> None:
        target = AheadTarget(pages=256, page_size=4)
        async with serving(target=target, pages=256) as harness:
            replies = asyncio.gather(*(check(harness, [n, *PROMPT], 100) for n in range(3)))
            await until(lambda: target.behind > 5)
            async with harness.drafter(oracle_script(target)) as drafter:
                await replies
                behind, steps = target.behind, target.steps
                await check(harness, PROMPT, 40)
                # It drafts in every round: nothing is queued ahead of its trees.
                assert (target.behind, target.steps - steps < 30) == (behind, True)
                await drafter.until(lambda: all(session.closed for session in drafter.sessions.values()))
                assert len(drafter.sessions) == 4
                for session in drafter.sessions.values():
                    check_features(session, target)
            await harness.idle()

    run(body())


def test_features_while_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the step that is told, not of the one behind it."""

    async def body() -> None:
        target = AheadTarget(pages=256, page_size=4)
        async with serving(target=target, pages=256) as harness, harness.drafter(oracle_script(target)) as drafter:
            policy, verdict = await joined(harness), Ask.NOTHING
            policy.speculating, policy._outlooks[0].next_look = False, 10**6
            monkeypatch.setattr(policy, "next_ask", lambda _: verdict)
            call = harness.stub.Generate(request(PROMPT, 60, mode=sampling_pb2.SPECULATION_MODE_AUTO))
            tokens: list[int] = []
            async for message in call:
                tokens += message.token_ids
                if len(tokens) == 20:
                    assert not drafter.frames
                    assert target.behind > 10
                    policy.speculating, verdict = True, Ask.DRAFT
            assert tokens == target.plain(PROMPT, 60)
            (session,) = drafter.sessions.values()
            assert len(session.tokens) > 40
            assert session.tokens == (PROMPT + tokens)[: len(session.tokens)]
            check_features(session, target)
            assert sum(commit.nodes_verified > 0 for commit in session.commits) > 5

    run(body())


async def read_until_it_fails(call: Any, target: AheadTarget, seen: list[int]) -> None:
    async for message in call:
        if len(seen) <= 4 < len(seen) + len(message.token_ids):
            target.failure = RuntimeError("no more")  # once
        seen += message.token_ids


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
