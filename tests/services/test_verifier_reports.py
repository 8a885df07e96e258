"""What the verifier tells about its rounds: round reports to one client, and the counters of GetLoad to all."""

import asyncio
from typing import Any

import pytest

from draftwood_wire.tree import TokenTree, tree_to_proto
from draftwood_wire.v1 import sampling_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.scripted_drafter import DraftedSession, Script, make_tree
from tests.services.verifier_harness import Harness, request, run, serving, silent

PROMPT = [3, 0, 5, 0, 7, 1]
LENGTH = 20
SAMPLING = {"temperature": 0.8, "seed": 7}


async def reports_of(
    harness: Harness, prompt: list[int] = PROMPT, length: int = LENGTH, **fields: Any
) -> tuple[list[pb.RoundReport], pb.GenerateUsage]:
    """All reports of one request; each message's tokens are those of its reports."""
    reports: list[pb.RoundReport] = []
    async for message in harness.stub.Generate(request(prompt, length, report_rounds=True, **SAMPLING, **fields)):
        assert [token for report in message.rounds for token in report.token_ids] == list(message.token_ids)
        reports += message.rounds
    return reports, message.usage


def branching(harness: Harness, depth: int = 3) -> Script:
    """The right path, and a wrong sibling first at every depth: node 2d - 1 is wrong, node 2d right."""

    async def script(session: DraftedSession) -> TokenTree:
        params = session.opened.sampling
        right = harness.target.plain(session.tokens, depth, temperature=params.temperature, seed=params.seed)
        pairs = [((token + 1) % harness.target.vocab_size, token) for token in right]
        token_ids = [token for pair in pairs for token in pair]
        return make_tree(token_ids, [2 * (node // 2) for node in range(2 * depth)])

    return script


def test_reports_tell_tree_path_and_tokens_of_every_round() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(branching(harness)):
            reports, usage = await reports_of(harness)
            tokens = [token for report in reports for token in report.token_ids]
            assert tokens == harness.target.plain(PROMPT, LENGTH, **SAMPLING)
            assert [report.round for report in reports] == list(range(usage.rounds + 1))
            length = len(PROMPT)
            for report in reports:
                assert report.base_len == length
                length += len(report.token_ids)
                assert len(report.path) == len(report.token_ids)
                assert report.path[0] == 0
                accepted = [report.tree.token_ids[node - 1] for node in report.path[1:]]
                assert accepted == list(report.token_ids[:-1])
                assert report.verify_ms > 0
            first, second = reports[0], reports[1]
            assert (len(first.tree.token_ids), first.draft_wait_ms) == (0, 0.0)
            assert list(second.path) == [0, 2, 4, 6]
            assert list(second.tree.parents) == [0, 0, 2, 2, 4, 4]
            assert second.tree.log_probs[:] == pytest.approx([-0.1 * i for i in range(1, 7)])
            assert all(report.draft_wait_ms > 0 for report in reports[1:])
            assert sum(len(report.tree.token_ids) for report in reports) == usage.proposed_nodes
            assert sum(len(report.path) - 1 for report in reports) == usage.accepted_nodes > 0
            assert sum(bool(report.tree.token_ids) for report in reports) == usage.speculative_rounds

    run(body())


def test_a_plain_request_reports_plain_rounds() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(branching(harness)):
            reports, usage = await reports_of(harness, mode=sampling_pb2.SPECULATION_MODE_OFF)
            assert len(reports) == LENGTH == usage.rounds + 1
            assert all(list(r.path) == [0] and not r.tree.token_ids and r.draft_wait_ms == 0 for r in reports)

    run(body())


def test_a_missed_deadline_is_the_wait_of_its_round() -> None:
    async def body() -> None:
        async with serving(draft_wait_ms=60.0) as harness, harness.drafter(silent):
            reports, _ = await reports_of(harness)
            waits = [report.draft_wait_ms for report in reports]
            assert waits[0] == 0
            assert waits[1] >= 60
            assert max(waits[2:]) < waits[1], "a lagging session was waited for"

    run(body())


def test_a_wait_ends_with_the_answer_not_with_the_step() -> None:
    """Sessions of one drafter go together: one's answer lies there while the other's is worked on."""

    async def body() -> None:
        async with serving() as harness:
            working: list[asyncio.Task[None]] = []

            async def answer(session: DraftedSession, delay_s: float) -> None:
                await asyncio.sleep(delay_s)  # the time that the drafter works
                tree = tree_to_proto(make_tree(harness.target.plain(session.tokens, 1, **SAMPLING)))
                proposal = pb.Proposal(session_id=session.session_id, base_len=len(session.tokens), tree=tree)
                await drafter.send(pb.SpeculateRequest(proposals=pb.ProposalBatch(proposals=[proposal])))

            async def one_by_one(session: DraftedSession) -> None:
                delay_s = 0.0 if list(session.opened.token_ids) == PROMPT else 0.3
                working.append(asyncio.create_task(answer(session, delay_s)))

            async with harness.drafter(one_by_one) as drafter:
                (quick, _), (slow, _) = await asyncio.gather(
                    reports_of(harness, PROMPT, 5), reports_of(harness, [*PROMPT, 2], 5)
                )
                await asyncio.gather(*working)
            assert min(report.draft_wait_ms for report in slow[1:]) >= 300
            assert max(report.draft_wait_ms for report in quick[1:]) < 300

    run(body())


def test_nobody_pays_who_did_not_ask() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(branching(harness)):
            engine = harness.service.engine
            observers = list(engine.observers)
            call = harness.stub.Generate(request(PROMPT, 200, report_rounds=True))
            first = await call.read()
            assert len(engine.observers) == len(observers) + 1
            other = await harness.generate(PROMPT, LENGTH)  # checks its own messages
            call.cancel()
            await harness.idle()
            assert engine.observers == observers, "the log of a cancelled request goes on"
            assert len(first.rounds) >= 1
            messages = [m async for m in harness.stub.Generate(request(PROMPT, LENGTH))]
            assert not any(message.rounds for message in messages)
            assert len(other.tokens) == LENGTH

    run(body())


def test_load_counts_what_the_requests_used() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(branching(harness), drafter_id="oak", node_limit=40):
            replies = await asyncio.gather(
                *(harness.generate([*PROMPT, i], LENGTH, **SAMPLING) for i in range(3)),
                harness.generate(PROMPT, LENGTH, mode=sampling_pb2.SPECULATION_MODE_OFF),
            )
            load = await harness.stub.GetLoad(pb.GetLoadRequest())
            for name in ("rounds", "speculative_rounds", "proposed_nodes", "accepted_nodes"):
                assert getattr(load, name) == sum(getattr(reply.usage, name) for reply in replies) > 0
            assert load.first_tokens == len(replies)
            assert load.committed_tokens == load.first_tokens + load.rounds + load.accepted_nodes == 4 * LENGTH
            assert load.steps == harness.target.steps
            assert load.last_step_requests >= 1
            await harness.generate([*PROMPT, 9], 1)  # a step of prefill only, which decodes nothing
            after = await harness.stub.GetLoad(pb.GetLoadRequest())
            assert (after.first_tokens, after.rounds) == (load.first_tokens + 1, load.rounds)
            assert after.last_step_requests == load.last_step_requests
            (row,) = load.drafter_loads
            assert (row.drafter_id, row.sessions, row.late, row.node_limit) == ("oak", 0, False, 40)

    run(body())


def test_load_tells_the_nodes_of_the_last_step_and_the_drafters_state() -> None:
    async def body() -> None:
        async with serving(draft_wait_ms=1000.0) as harness:
            held = asyncio.Event()

            async def wrong_then_silent(session: DraftedSession) -> TokenTree | None:
                if len(session.commits) > 1:
                    held.set()
                    return None
                (token,) = harness.target.plain(session.tokens, 1)
                return make_tree([(token + 1) % harness.target.vocab_size])

            async with harness.drafter(wrong_then_silent):
                reply = asyncio.create_task(harness.generate(PROMPT, 4))
                await held.wait()
                load = await harness.stub.GetLoad(pb.GetLoadRequest())
                assert (load.last_step_nodes, load.last_step_requests) == (1, 1)
                assert load.drafter_loads[0].sessions == load.drafted_sessions == 1
                assert not load.drafter_loads[0].late
                await reply
                load = await harness.stub.GetLoad(pb.GetLoadRequest())
                assert (load.last_step_nodes, load.last_step_requests) == (0, 1)
                assert load.drafter_loads[0].late

    run(body())
