"""Mode auto over real streams: drafts that pay are used, others cost next to nothing, and no token ever changes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from draftwood_verifier.budget.policy import Ask
from draftwood_wire.tree import TokenTree
from draftwood_wire.v1 import sampling_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.fake_target import FakeTarget
from tests.services.scripted_drafter import DraftedSession, Script, ScriptedDrafter, make_tree
from tests.services.verifier_harness import Harness, check_features, joined, oracle_script, request, run, serving

PROMPT = [3, 0, 5, 0, 7, 1]
AUTO = {"mode": sampling_pb2.SPECULATION_MODE_AUTO}
# Long against what a loopback round trip takes, on a busy machine too.
STEP_S = 0.02


def slow_target() -> FakeTarget:
    return FakeTarget(pages=256, page_size=4, context_limit=512, step_s=STEP_S)


def commits(drafter: ScriptedDrafter) -> list[pb.Commit]:
    return [c for frame in drafter.frames if frame.HasField("commits") for c in frame.commits.commits]


def wrong_script(target: FakeTarget) -> Script:
    """A drafter that knows the next token, and confidently proposes another one."""

    async def script(session: DraftedSession) -> TokenTree:
        wrong = (target.plain(session.tokens, 1)[0] + 1) % target.vocab_size
        return make_tree([wrong, wrong, wrong])

    return script


def test_drafts_that_pay_are_used() -> None:
    async def body() -> None:
        target = slow_target()
        async with serving(target=target, pages=256) as harness, harness.drafter(oracle_script(target)):
            reply = await harness.generate(PROMPT, 200, **AUTO)
            assert reply.tokens == target.plain(PROMPT, 200)
            assert reply.usage.accepted_nodes > 100

    run(body())


def test_drafts_that_do_not_pay_are_not_asked_for() -> None:
    async def body() -> None:
        target = slow_target()
        async with serving(target=target, pages=256) as harness, harness.drafter(wrong_script(target)) as drafter:
            first = await harness.generate(PROMPT, 100, **AUTO)
            assert not harness.service.policy.speculating
            heard = len(commits(drafter))
            second = await harness.generate(PROMPT, 200, **AUTO)
            assert first.tokens == second.tokens[:100] == target.plain(PROMPT, 100)
            assert second.tokens == target.plain(PROMPT, 200)
            # A look now and then, and nothing else on the wire.
            assert len(commits(drafter)) - heard <= 25
            assert second.usage.speculative_rounds <= 20

    run(body())


def test_pinned_requests_are_drafted_for_whatever_auto_thinks() -> None:
    async def body() -> None:
        target = slow_target()
        async with serving(target=target, pages=256) as harness, harness.drafter(wrong_script(target)):
            await harness.generate(PROMPT, 100, **AUTO)
            assert not harness.service.policy.speculating
            reply = await harness.generate(PROMPT, 40)
            assert reply.usage.speculative_rounds >= reply.usage.rounds - 1 > 30  # the last needs no tree
            assert reply.tokens == target.plain(PROMPT, 40)

    run(body())


def test_what_was_held_back_comes_whole_when_drafts_are_wanted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        target = slow_target()
        async with serving(target=target, pages=256) as harness, harness.drafter(oracle_script(target)) as drafter:
            policy = await joined(harness)
            policy.speculating = False
            verdict = Ask.NOTHING
            monkeypatch.setattr(policy, "next_ask", lambda _: verdict)
            call = harness.stub.Generate(request(PROMPT, 60, **AUTO))
            tokens: list[int] = []
            async for message in call:
                tokens += message.token_ids
                if len(tokens) == 20:
                    assert not drafter.frames
                    policy.speculating, verdict = True, Ask.DRAFT
            assert tokens == target.plain(PROMPT, 60)
            (session,) = drafter.sessions.values()
            assert session.tokens == (PROMPT + tokens)[: len(session.tokens)]
            assert len(session.tokens) > 40
            check_features(session, target)
            assert sum(c.nodes_verified > 0 for c in session.commits) > 5

    run(body())


def test_a_budget_that_cannot_learn_costs_no_request_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no lesson")

    async def body() -> None:
        target = FakeTarget(pages=256, page_size=4)
        async with serving(target=target, pages=256) as harness, harness.drafter(oracle_script(target)):
            policy = await joined(harness)
            monkeypatch.setattr(policy.calibration, "observe", fails)
            reply = await harness.generate(PROMPT, 40, **AUTO)
            assert reply.tokens == target.plain(PROMPT, 40)
            assert reply.usage.accepted_nodes > 0

    run(body())


def test_a_drafter_is_asked_for_no_more_nodes_than_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        target = FakeTarget(pages=256, page_size=4)
        async with serving(target=target, pages=256) as harness, harness.drafter(oracle_script(target)) as drafter:
            policy = await joined(harness)
            monkeypatch.setattr(policy, "nodes_wanted", lambda _: 3)
            reply = await harness.generate(PROMPT, 40, **AUTO)
            await drafter.until(lambda: any(s.closed for s in drafter.sessions.values()))
            (session,) = drafter.sessions.values()
            assert {c.nodes_wanted for c in session.commits} - {0} == {3}
            assert reply.tokens == target.plain(PROMPT, 40)

    run(body())


@contextlib.asynccontextmanager
async def never_asking(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Harness, ScriptedDrafter]]:
    """A verifier that has a drafter, and never asks it for a draft in mode auto."""
    target = FakeTarget(pages=256, page_size=4)
    async with serving(target=target, pages=256) as harness, harness.drafter(wrong_script(target)) as drafter:
        policy = await joined(harness)
        policy.speculating = False
        monkeypatch.setattr(policy, "next_ask", lambda _: Ask.NOTHING)
        yield harness, drafter


def test_a_session_holds_back_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood_verifier.drafting.HELD_LIMIT_BYTES", 10 * 16)  # ten rows of 2 layers of 2 floats

    async def body() -> None:
        async with never_asking(monkeypatch) as (harness, drafter):
            reply = await harness.generate(PROMPT, 50, **AUTO)
            await drafter.until(lambda: any(s.closed for s in drafter.sessions.values()))
            (session,) = drafter.sessions.values()
            assert len(session.tokens) > 30
            assert session.tokens == (PROMPT + reply.tokens)[: len(session.tokens)]
            assert all(c.nodes_wanted == 0 for c in session.commits)
            check_features(session, harness.target)

    run(body())


def test_a_long_prompt_does_not_wait_on_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood_verifier.drafting.HELD_LIMIT_BYTES", 40 * 16)  # forty rows

    async def body() -> None:
        async with never_asking(monkeypatch) as (harness, drafter):
            # Chunks of 16: the third is one too many, and all goes out with it, before there is any token to tell of.
            await harness.generate([7] * 64, 1, **AUTO)
            await drafter.until(lambda: any(s.closed for s in drafter.sessions.values()))
            (session,) = drafter.sessions.values()
            assert len(session.features) >= 48

    run(body())


@pytest.mark.parametrize("groups", [1, 2])
def test_sessions_come_and_go_through_all_switches(groups: int) -> None:
    async def body() -> None:
        target = FakeTarget(pages=256, page_size=4)
        settings = {"target": target, "pages": 256, "draft_groups": groups}
        async with serving(**settings) as harness, harness.drafter(oracle_script(target)):
            random = np.random.default_rng(3)

            async def one(index: int) -> None:
                prompt = random.integers(0, 24, size=5).tolist()
                count = int(random.integers(5, 60))
                call = harness.stub.Generate(request(prompt, count, **AUTO))
                tokens: list[int] = []
                async for message in call:
                    tokens += message.token_ids
                    harness.service.policy.speculating = bool((index + len(tokens)) % 3)
                assert tokens == target.plain(prompt, count)

            await _together(harness, [one(index) for index in range(24)])

    run(body())


async def _together(harness: Harness, calls: list[Any]) -> None:
    await asyncio.gather(*calls)
    await harness.idle()
