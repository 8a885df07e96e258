"""A scripted drafter over real gRPC forces every case of a round; the tokens are always those of plain decoding."""

import asyncio
from typing import Any

import numpy as np
import pytest

from draftwood_wire.tree import TokenTree
from draftwood_wire.v1 import sampling_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.fake_target import FakeTarget, feature_rows
from tests.services.scripted_drafter import DraftedSession, Script, make_tree
from tests.services.verifier_harness import Harness, run, serving, silent

PROMPT = [3, 0, 5, 0, 7, 1]
DEPTH = 4
LENGTH = 24
SAMPLINGS = [{"temperature": 0.0, "seed": 1}, {"temperature": 0.8, "seed": 7}]


def next_tokens(target: FakeTarget, session: DraftedSession, count: int) -> list[int]:
    """What plain decoding will give after the session's tokens."""
    params = session.opened.sampling
    return target.plain(session.tokens, count, temperature=params.temperature, seed=params.seed)


def wrong(token: int, vocab_size: int = 24) -> int:
    return (token + 1) % vocab_size


def right_then_wrong(target: FakeTarget, session: DraftedSession, right: int, depth: int) -> list[int]:
    tokens = next_tokens(target, session, depth)
    return tokens[:right] + [wrong(token) for token in tokens[right:]]


async def check(harness: Harness, expected: list[int], sampling: dict[str, Any], **fields: Any) -> pb.GenerateUsage:
    reply = await harness.generate(PROMPT, LENGTH, **sampling, **fields)
    assert reply.tokens == expected
    await harness.idle()
    return reply.usage


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("accepted", range(DEPTH + 1))
def test_every_accepted_length(accepted: int, sampling: dict[str, Any]) -> None:
    async def body() -> None:
        async with serving() as harness:
            plain = harness.target.plain(PROMPT, LENGTH, **sampling)

            async def script(session: DraftedSession) -> TokenTree:
                return make_tree(right_then_wrong(harness.target, session, accepted, DEPTH))

            async with harness.drafter(script) as drafter:
                usage = await check(harness, plain, sampling)
                session = next(iter(drafter.sessions.values()))
                full = session.commits[1:-1]  # the last rounds are near the end
                assert {len(c.token_ids) for c in full} == {accepted + 1}
                # Close to the end a tree is cut to what can still be committed.
                roomy = [c for c in session.commits[1:] if c.base_len + DEPTH < len(PROMPT) + LENGTH]
                assert {c.nodes_verified for c in roomy} == {DEPTH}
                assert usage.rounds == -(-(LENGTH - 1) // (accepted + 1))
                assert usage.speculative_rounds >= usage.rounds - 1

    run(body())


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sibling_paths(sampling: dict[str, Any]) -> None:
    async def body() -> None:
        async with serving() as harness:
            plain = harness.target.plain(PROMPT, LENGTH, **sampling)

            async def script(session: DraftedSession) -> TokenTree:
                a, b, c = next_tokens(harness.target, session, 3)
                # Two wrong siblings first at every depth, and a right token below a wrong one.
                tokens = [wrong(a), wrong(wrong(a)), a, b, wrong(b), b, wrong(c), c]
                return make_tree(tokens, [0, 0, 0, 1, 3, 3, 6, 6])

            async with harness.drafter(script):
                usage = await check(harness, plain, sampling)
                assert usage.rounds == 6  # 23 tokens after the first, 4 a round
                assert usage.proposed_nodes > usage.accepted_nodes

    run(body())


def test_token_zero_is_a_token() -> None:
    """Drafts of zeros, right where the target says 0 and wrong elsewhere."""

    async def body() -> None:
        target = FakeTarget(pages=64, page_size=4, vocab_size=2)
        async with serving(target=target) as harness:
            plain = target.plain(PROMPT2, LENGTH)
            assert plain.count(0) > 5

            async def script(session: DraftedSession) -> TokenTree:
                del session
                return make_tree([0, 0, 0])

            async with harness.drafter(script):
                reply = await harness.generate(PROMPT2, LENGTH)
                assert reply.tokens == plain
                assert reply.usage.accepted_nodes > 0

    run(body())


PROMPT2 = [0, 1, 0, 0, 1]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_stop_token_and_max_tokens_at_every_offset(sampling: dict[str, Any]) -> None:
    async def body() -> None:
        async with serving() as harness:
            target = harness.target
            plain = target.plain(PROMPT, LENGTH, **sampling)

            async def script(session: DraftedSession) -> TokenTree:
                return make_tree(next_tokens(target, session, DEPTH))

            async with harness.drafter(script):
                for offset in range(LENGTH):
                    stop = plain[offset]
                    reply = await harness.generate(PROMPT, LENGTH, **sampling, stop_token_ids=[stop])
                    assert reply.tokens == plain[: plain.index(stop) + 1]
                    assert reply.finish_reason == pb.FINISH_REASON_STOP
                for count in range(1, LENGTH):
                    reply = await harness.generate(PROMPT, count, **sampling)
                    assert reply.tokens == plain[:count]
                    assert reply.finish_reason == pb.FINISH_REASON_LENGTH
                await harness.idle()

    run(body())


def test_the_turn_after_a_stop_inside_a_path_hits_the_cache() -> None:
    async def body() -> None:
        async with serving() as harness:
            target = harness.target
            plain = target.plain(PROMPT, LENGTH)

            async def script(session: DraftedSession) -> TokenTree:
                return make_tree(next_tokens(target, session, DEPTH))

            async with harness.drafter(script):
                first = await harness.generate(PROMPT, LENGTH, stop_token_ids=[plain[12]])
                turn = PROMPT + first.tokens
                second = await harness.generate([*turn, 2, 2], LENGTH)
                assert second.usage.cached_tokens == (len(turn) - 1) // 4 * 4
                assert second.tokens == target.plain([*turn, 2, 2], LENGTH)

    run(body())


def test_a_path_to_the_context_limit() -> None:
    async def body() -> None:
        target = FakeTarget(pages=64, page_size=4, context_limit=20)
        async with serving(target=target) as harness:

            async def script(session: DraftedSession) -> TokenTree:
                return make_tree(next_tokens(target, session, 7))

            async with harness.drafter(script):
                for length in range(1, 20):
                    prompt = PROMPT2 * 4
                    reply = await harness.generate(prompt[:length], None)
                    assert reply.tokens == target.plain(prompt[:length], 20 - length)
                await harness.idle()

    run(body())


def test_modes_and_node_limits_reach_the_drafter_and_are_kept_here() -> None:
    async def body() -> None:
        async with serving(node_limit=9) as harness:
            target = harness.target
            plain = target.plain(PROMPT, LENGTH)

            async def branching(session: DraftedSession) -> TokenTree:
                a, b = next_tokens(target, session, 2)
                return make_tree([a, wrong(a), b], [0, 0, 1])

            async with harness.drafter(branching) as drafter:
                usage = await check(harness, plain, {}, mode=sampling_pb2.SPECULATION_MODE_OFF)
                assert usage.speculative_rounds == 0
                assert not drafter.sessions
                await check(harness, plain, {}, mode=sampling_pb2.SPECULATION_MODE_CHAIN)
                chain = drafter.sessions[max(drafter.sessions)].opened.speculation
                assert (chain.mode, chain.node_limit) == (sampling_pb2.SPECULATION_MODE_CHAIN, 9)
                # A tree that branches is not what a chain was asked for.
                counters = harness.service.drafters.counters
                assert counters.refused > 0
                counters.refused = 0
                usage = await check(harness, plain, {}, node_limit=2)
                assert counters.refused > 0  # three nodes are more than two
                assert usage.speculative_rounds == 0
                usage = await check(harness, plain, {}, node_limit=3)
                assert usage.speculative_rounds > 0

    run(body())


MALFORMED: list[dict[str, Any]] = [
    {"token_ids": [1, 2], "parents": [0], "log_probs": [-1, -2]},
    {"token_ids": [24], "parents": [0], "log_probs": [-1]},
    {"token_ids": [2**32 - 1], "parents": [0], "log_probs": [-1]},
    {"token_ids": [1], "parents": [1], "log_probs": [-1]},
    {"token_ids": [1, 2], "parents": [2, 0], "log_probs": [-1, -2]},
    {"token_ids": [1], "parents": [0], "log_probs": [float("nan")]},
    {"token_ids": [1], "parents": [0], "log_probs": [0.5]},
    {"token_ids": [1, 2], "parents": [0, 0], "log_probs": [-2, -1]},
    {"token_ids": [1, 1], "parents": [0, 0], "log_probs": [-1, -2]},
    {"token_ids": [1] * 8, "parents": list(range(8)), "log_probs": [-1] * 8},  # deeper than the block
    {"token_ids": list(range(17)), "parents": [0] * 17, "log_probs": [-1] * 17},  # above the node limit
]


@pytest.mark.parametrize("tree", MALFORMED)
def test_malformed_trees_are_counted_and_hurt_nobody(tree: dict[str, Any]) -> None:
    async def body() -> None:
        async with serving() as harness:

            async def script(session: DraftedSession) -> Any:
                if session.opened.token_ids[0] == PROMPT[0]:
                    return pb.Proposal(
                        session_id=session.session_id, base_len=len(session.tokens), tree=tree_message(tree)
                    )
                return make_tree(next_tokens(harness.target, session, DEPTH))

            async with harness.drafter(script):
                bad, good = await asyncio.gather(harness.generate(PROMPT, LENGTH), harness.generate(PROMPT2, LENGTH))
                assert bad.tokens == harness.target.plain(PROMPT, LENGTH)
                assert good.tokens == harness.target.plain(PROMPT2, LENGTH)
                assert (bad.usage.speculative_rounds, bad.usage.rounds) == (0, LENGTH - 1)
                assert good.usage.rounds == -(-(LENGTH - 1) // (DEPTH + 1))
                load = await harness.stub.GetLoad(pb.GetLoadRequest())
                assert load.refused_proposals >= LENGTH - 2
                assert load.drafters == 1

    run(body())


def tree_message(tree: dict[str, Any]) -> Any:
    from_dict = pb.Proposal(tree=tree)
    return from_dict.tree


def test_bad_lengths_and_foreign_sessions() -> None:
    async def body() -> None:
        async with serving() as harness:
            seen: list[DraftedSession] = []

            async def script(session: DraftedSession) -> Any:
                seen.append(session)
                tree = {"token_ids": [1], "parents": [0], "log_probs": [-1]}
                bad = [
                    pb.Proposal(session_id=session.session_id, base_len=base_len, tree=tree)
                    for base_len in (0, len(PROMPT), len(session.tokens) + 1, 2**32 - 1)
                ]
                foreign = pb.Proposal(session_id=99, base_len=3, tree=tree)
                await drafter.send(pb.SpeculateRequest(proposals=pb.ProposalBatch(proposals=[foreign, *bad])))
                await drafter.send(pb.SpeculateRequest())
                await drafter.send(
                    pb.SpeculateRequest(context_request=pb.ContextRequest(session_id=99, from_position=0))
                )
                return make_tree(next_tokens(harness.target, session, DEPTH))

            async with harness.drafter(script) as drafter:
                reply = await harness.generate(PROMPT, LENGTH)
                assert reply.tokens == harness.target.plain(PROMPT, LENGTH)
                counters = harness.service.drafters.counters
                assert counters.refused >= 4
                assert counters.stale >= 2

    run(body())


def check_features(session: DraftedSession, layer_ids: tuple[int, ...]) -> None:
    positions = sorted(session.features)
    assert positions == list(range(len(session.tokens) - 1)), "a position's features are missing"
    expected = feature_rows(np.array(positions, np.int32), np.array(session.tokens[:-1], np.int32), layer_ids)
    np.testing.assert_array_equal(np.stack([session.features[p] for p in positions]), expected)


def test_features_are_those_of_the_committed_rows() -> None:
    async def body() -> None:
        async with serving() as harness:

            def scripted(right: int) -> Script:
                async def script(session: DraftedSession) -> TokenTree:
                    a, b, c = next_tokens(harness.target, session, 3)
                    return make_tree([wrong(a), a, wrong(b), b, c][: 2 + right], [0, 0, 2, 2, 4][: 2 + right])

                return script

            prompts = [[i, *range(20 + i)] for i in range(4)]
            # Two drafters with different layers share the sessions.
            async with (
                harness.drafter(scripted(2), layer_ids=(3, 0)) as one,
                harness.drafter(scripted(3), layer_ids=(1,)) as other,
            ):
                replies = await asyncio.gather(*(harness.generate(p, 30) for p in prompts))
                for prompt, reply in zip(prompts, replies, strict=True):
                    assert reply.tokens == harness.target.plain(prompt, 30)
                assert len(one.sessions) == len(other.sessions) == 2
                for drafter, layer_ids in ((one, (3, 0)), (other, (1,))):
                    await drafter.until(lambda d=drafter: all(s.closed for s in d.sessions.values()))
                    for session in drafter.sessions.values():
                        check_features(session, layer_ids)

    run(body())


def test_context_request_after_a_prefix_hit() -> None:
    async def body() -> None:
        async with serving(prefill_chunk=8) as harness:
            prompt = list(range(20)) + list(range(13))

            async def script(session: DraftedSession) -> TokenTree:
                return make_tree(next_tokens(harness.target, session, 2))

            async with harness.drafter(script) as drafter:
                await harness.generate(prompt, 12)
                warm = await harness.generate(prompt, 60)
                assert warm.usage.cached_tokens == 32
                assert warm.tokens == harness.target.plain(prompt, 60)
                session = drafter.sessions[max(drafter.sessions)]
                await drafter.until(lambda: session.closed)
                assert session.opened.features_from == 32
                check_features(session, (1, 3))

    run(body())


def test_late_drafter_joins_and_gets_all_rows() -> None:
    async def body() -> None:
        # The silent drafter holds the request in mid-generation until the other one is there.
        async with serving() as harness:
            joined = asyncio.Event()

            async def quiet_then_gone(session: DraftedSession) -> Any:
                if len(session.commits) < 4:
                    return make_tree([wrong(0)])
                joined.set()
                return None

            async def script(session: DraftedSession) -> TokenTree:
                return make_tree(next_tokens(harness.target, session, DEPTH))

            async with harness.drafter(quiet_then_gone, drafter_id="first") as first:
                task = asyncio.create_task(harness.generate(PROMPT, 150))
                await joined.wait()
                async with harness.drafter(script, drafter_id="second") as second:
                    await first.kill()
                    reply = await task
                    assert reply.tokens == harness.target.plain(PROMPT, 150)
                    session = next(iter(second.sessions.values()))
                    assert session.opened.features_from > len(PROMPT)
                    assert list(session.opened.token_ids[: len(PROMPT)]) == PROMPT
                    await second.until(lambda: session.closed)
                    check_features(session, (1, 3))
                    assert reply.usage.accepted_nodes > 0  # acceptance is back

    run(body())


def test_death_of_the_only_drafter_changes_no_token() -> None:
    async def body() -> None:
        async with serving() as harness:
            enough = asyncio.Event()

            async def script(session: DraftedSession) -> Any:
                if len(session.tokens) > 40:
                    enough.set()
                    return None
                return make_tree(right_then_wrong(harness.target, session, 2, DEPTH))

            async with harness.drafter(script) as drafter:
                task = asyncio.create_task(harness.generate(PROMPT, 100, temperature=0.8, seed=5))
                await enough.wait()
                await drafter.kill()
                reply = await task
                assert reply.tokens == harness.target.plain(PROMPT, 100, temperature=0.8, seed=5)
                assert 0 < reply.usage.speculative_rounds < reply.usage.rounds
            await harness.idle()
            assert not harness.service.drafters.links

    run(body())


def test_session_error_makes_one_session_plain() -> None:
    async def body() -> None:
        async with serving() as harness:

            async def script(session: DraftedSession) -> Any:
                if session.opened.token_ids[0] != PROMPT[0]:
                    return make_tree(next_tokens(harness.target, session, DEPTH))
                error = pb.SessionError(session_id=session.session_id, message="no room")
                await drafter.send(pb.SpeculateRequest(session_error=error))
                return None

            async with harness.drafter(script) as drafter:
                plain, drafted = await asyncio.gather(
                    harness.generate(PROMPT, LENGTH), harness.generate(PROMPT2, LENGTH)
                )
                assert plain.tokens == harness.target.plain(PROMPT, LENGTH)
                assert drafted.tokens == harness.target.plain(PROMPT2, LENGTH)
                assert plain.usage.speculative_rounds == 0
                assert drafted.usage.speculative_rounds > 0
                assert len(harness.service.drafters.links) == 1

    run(body())


def test_a_slow_drafter_misses_its_time_and_comes_back() -> None:
    async def body() -> None:
        async with serving(draft_wait_ms=300.0) as harness:

            async def script(session: DraftedSession) -> Any:
                if len(session.commits) == 3:
                    return None
                return make_tree(next_tokens(harness.target, session, DEPTH))

            async with harness.drafter(script) as drafter:
                reply = await harness.generate(PROMPT, 200)
                assert reply.tokens == harness.target.plain(PROMPT, 200)
                session = next(iter(drafter.sessions.values()))
                await drafter.until(lambda: session.closed)
                looked_at = [commit.nodes_verified for commit in session.commits]
                assert 0 in looked_at[3:]
                assert looked_at[-3] > 0

    run(body())


def test_plain_requests_are_not_held_by_a_silent_drafter() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(silent) as drafter:
            held = asyncio.create_task(harness.generate(PROMPT, LENGTH))
            await drafter.until(lambda: any(s.commits for s in drafter.sessions.values()))
            for _ in range(3):
                plain = await harness.generate(PROMPT2, LENGTH, mode=sampling_pb2.SPECULATION_MODE_OFF)
                assert plain.tokens == harness.target.plain(PROMPT2, LENGTH)
            assert not held.done()
            await drafter.kill()
            assert (await held).tokens == harness.target.plain(PROMPT, LENGTH)

    run(body())


def test_stale_proposals_are_re_rooted() -> None:
    """A drafter that answers one commit late: what it says still lies on the committed path."""

    async def body() -> None:
        async with serving(draft_wait_ms=20.0) as harness:

            async def script(session: DraftedSession) -> Any:
                if len(session.commits) < 2:
                    return make_tree([])
                base_len = len(session.tokens) - len(session.commits[-1].token_ids)
                after = harness.target.plain(session.tokens[:base_len], 7)
                tree = make_tree(after)
                return pb.Proposal(
                    session_id=session.session_id,
                    base_len=base_len,
                    tree={
                        "token_ids": tree.token_ids.tolist(),
                        "parents": tree.parents.tolist(),
                        "log_probs": tree.log_probs.tolist(),
                    },
                )

            async with harness.drafter(script):
                reply = await harness.generate(PROMPT, LENGTH)
                assert reply.tokens == harness.target.plain(PROMPT, LENGTH)
                assert harness.service.drafters.counters.rerooted > 0
                assert reply.usage.accepted_nodes > 0

    run(body())


def test_trace_context_reaches_the_drafter() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(silent) as drafter:
            traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            call = harness.stub.Generate(
                pb.GenerateRequest(prompt_token_ids=PROMPT, max_tokens=5), metadata=(("traceparent", traceparent),)
            )
            await drafter.until(lambda: bool(drafter.sessions))
            opened = next(iter(drafter.sessions.values())).opened
            assert opened.traceparent == traceparent
            assert opened.sampling.HasField("seed")
            call.cancel()
            await drafter.until(lambda: next(iter(drafter.sessions.values())).closed)
            await harness.idle()

    run(body())
