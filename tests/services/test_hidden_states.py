"""Hidden states in the place of trees, from a scripted drafter: used and refused like trees, all in one call."""

import asyncio
from typing import Any

import numpy as np
import pytest

from draftwood_kernels.build_tree import TreeWish
from draftwood_verifier.plan import Path, StepPlan
from draftwood_wire.tensor import tensor_to_proto
from draftwood_wire.v1 import sampling_pb2, tensor_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.fake_target import FakeTarget
from tests.services.scripted_drafter import DraftedSession, make_tree
from tests.services.verifier_harness import Harness, run, serving

PROMPT, PROMPT2 = [3, 0, 5, 0, 7, 1], [2, 2, 9]
DEPTH, LENGTH = 4, 24
FLOAT32, BFLOAT16 = tensor_pb2.DATA_TYPE_FLOAT32, tensor_pb2.DATA_TYPE_BFLOAT16


def proposal(session: DraftedSession, tensor: tensor_pb2.Tensor | None, base_len: int = 0) -> pb.Proposal:
    base_len = base_len or len(session.tokens)
    return pb.Proposal(session_id=session.session_id, base_len=base_len, hidden_states=tensor)


def rows(tokens: list[int], data_type: tensor_pb2.DataType = FLOAT32) -> tensor_pb2.Tensor:
    """Hidden states that the fake target reads these tokens from."""
    return tensor_to_proto(np.array([[token, 0.5] for token in tokens], np.float32), data_type)


def next_tokens(harness: Harness, session: DraftedSession) -> list[int]:
    params = session.opened.sampling
    return harness.target.plain(session.tokens, DEPTH, temperature=params.temperature, seed=params.seed)


@pytest.mark.parametrize("data_type", [FLOAT32, BFLOAT16])
def test_all_that_wait_become_trees_in_one_call(data_type: tensor_pb2.DataType) -> None:
    async def body() -> None:
        async with serving() as harness:
            held: list[pb.Proposal] = []

            async def script(session: DraftedSession) -> None:
                held.append(proposal(session, rows(next_tokens(harness, session), data_type)))
                if len(drafter.sessions) == 2:  # the one that came first waits for the other
                    batch = pb.ProposalBatch(proposals=held)
                    held.clear()
                    await drafter.send(pb.SpeculateRequest(proposals=batch))

            async with harness.drafter(script, hidden_state_data_type=data_type) as drafter:
                assert drafter.welcome.hidden_state_data_type == data_type
                first, second = await asyncio.gather(
                    harness.generate(PROMPT, LENGTH, temperature=0.8, seed=7),
                    harness.generate(PROMPT2, LENGTH, mode=sampling_pb2.SPECULATION_MODE_CHAIN, node_limit=3),
                )
            assert first.tokens == harness.target.plain(PROMPT, LENGTH, temperature=0.8, seed=7)
            assert second.tokens == harness.target.plain(PROMPT2, LENGTH)
            assert first.usage.rounds == -(-(LENGTH - 1) // (DEPTH + 1))
            assert second.usage.rounds == -(-(LENGTH - 1) // 4)
            plans = harness.target.draft_plans
            assert sum(len(plan.wishes) == 2 for plan in plans) == first.usage.rounds
            chain = next(wish for plan in plans for wish in plan.wishes if wish.is_chain)
            assert chain.depths == chain.node_limit == 3
            keyed = next(wish for plan in plans for wish in plan.wishes if not wish.is_chain)
            assert keyed == TreeWish(
                depths=DEPTH,
                position=len(PROMPT) + 1,
                is_chain=False,
                node_limit=16,
                temperature=np.float32(0.8),
                seed=7,
            )
            assert harness.service.drafters.counters.refused == 0

    run(body())


MALFORMED: dict[str, tensor_pb2.Tensor | None] = {
    "absent": None,
    "flat": tensor_to_proto(np.ones(2, np.float32)),
    "wide": tensor_to_proto(np.ones((2, 3), np.float32)),
    "no rows": tensor_to_proto(np.ones((0, 2), np.float32)),
    "too deep": tensor_to_proto(np.ones((8, 2), np.float32)),
    "another type": rows([1, 2], BFLOAT16),
    "not a number": tensor_to_proto(np.array([[1, 1], [np.nan, 1]], np.float32)),
    "infinite": tensor_to_proto(np.array([[1, np.inf]], np.float32)),
    "bytes are missing": tensor_pb2.Tensor(data_type=FLOAT32, shape=[1, 2], data=b"123"),
    "no logits": rows([1, 99]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_ones_are_counted_and_hurt_nobody(case: str) -> None:
    async def body() -> None:
        async with serving() as harness:

            async def script(session: DraftedSession) -> pb.Proposal:
                if session.opened.token_ids[0] == PROMPT[0]:
                    return proposal(session, MALFORMED[case])
                return proposal(session, rows(next_tokens(harness, session)))

            async with harness.drafter(script, hidden_state_data_type=FLOAT32):
                bad, good = await asyncio.gather(harness.generate(PROMPT, LENGTH), harness.generate(PROMPT2, LENGTH))
                load = await harness.stub.GetLoad(pb.GetLoadRequest())
            assert bad.tokens == harness.target.plain(PROMPT, LENGTH)
            assert good.tokens == harness.target.plain(PROMPT2, LENGTH)
            assert (bad.usage.speculative_rounds, bad.usage.rounds) == (0, LENGTH - 1)
            assert good.usage.rounds == -(-(LENGTH - 1) // (DEPTH + 1))
            assert load.refused_proposals >= LENGTH - 2
            assert load.drafters == 1

    run(body())


def test_trees_and_wrong_lengths_of_a_drafter_without_a_head() -> None:
    async def body() -> None:
        async with serving() as harness:

            async def script(session: DraftedSession) -> Any:
                right = rows(next_tokens(harness, session))
                # A refused one is not waited for: the verifier may be some rounds ahead.
                lengths = (len(session.tokens) + LENGTH, len(PROMPT) - 1)
                bad = [proposal(session, right, length) for length in lengths]
                foreign = pb.Proposal(session_id=99, base_len=3, hidden_states=right)
                batch = pb.ProposalBatch(proposals=[*bad, foreign])
                await drafter.send(pb.SpeculateRequest(proposals=batch))
                return make_tree(next_tokens(harness, session))

            async with harness.drafter(script, hidden_state_data_type=FLOAT32) as drafter:
                reply = await harness.generate(PROMPT, LENGTH)
                assert reply.tokens == harness.target.plain(PROMPT, LENGTH)
                assert reply.usage.speculative_rounds == 0
                counters = harness.service.drafters.counters
                assert counters.refused >= 2
                assert counters.stale >= 1
                assert not harness.target.draft_plans

    run(body())


def test_a_head_that_fails_costs_a_round_and_no_request() -> None:
    async def body() -> None:
        async with serving() as harness:

            async def script(session: DraftedSession) -> pb.Proposal:
                if len(session.commits) == 3:
                    harness.target.failure = MemoryError("the head is too large")
                return proposal(session, rows(next_tokens(harness, session)))

            async with harness.drafter(script, hidden_state_data_type=FLOAT32):
                reply = await harness.generate(PROMPT, LENGTH)
            assert reply.tokens == harness.target.plain(PROMPT, LENGTH)
            assert reply.usage.speculative_rounds == reply.usage.rounds - 1
            assert harness.service.drafters.counters.refused == 1

    run(body())


def test_late_ones_are_re_rooted() -> None:
    async def body() -> None:
        async with serving(draft_wait_ms=20.0) as harness:

            async def script(session: DraftedSession) -> pb.Proposal | None:
                if len(session.commits) < 2:
                    return None
                base_len = len(session.tokens) - len(session.commits[-1].token_ids)
                return proposal(session, rows(harness.target.plain(session.tokens[:base_len], 7)), base_len)

            async with harness.drafter(script, hidden_state_data_type=FLOAT32):
                reply = await harness.generate(PROMPT, LENGTH)
            assert reply.tokens == harness.target.plain(PROMPT, LENGTH)
            assert harness.service.drafters.counters.rerooted > 0
            assert reply.usage.accepted_nodes > 0

    run(body())


class WatchedTarget(FakeTarget):
    """Keeps, of every walk that weighs its tree against drafts, the tree and the hidden states that it names."""

    def __init__(self) -> None:
        super().__init__(pages=64, page_size=4)
        self.weighed: list[tuple[list[int], list[int]]] = []
        self.others = 0

    def execute(self, plan: StepPlan) -> list[Path]:
        for walk in plan.walks:
            if walk.draft_row < 0:
                self.others += bool(len(walk.tree))
                continue
            named = self.draft_plans[-1].hidden_states[walk.draft_row :][: len(walk.tree), 0]
            self.weighed.append((walk.tree.token_ids.tolist(), named.astype(int).tolist()))
        return super().execute(plan)


@pytest.mark.parametrize("late", [False, True])
def test_rejection_weighs_a_tree_against_the_rows_it_came_from(late: bool) -> None:
    async def body() -> None:
        target = WatchedTarget()
        async with serving(
            target=target, draft_wait_ms=20.0 if late else 30_000.0, verification="rejection"
        ) as harness:

            async def script(session: DraftedSession) -> pb.Proposal | None:
                if late and len(session.commits) < 2:
                    return None
                base_len = len(session.tokens) - (len(session.commits[-1].token_ids) if late else 0)
                params = session.opened.sampling
                known = session.tokens[:base_len]
                tokens = target.plain(known, 7, temperature=params.temperature, seed=params.seed)
                return proposal(session, rows(tokens), base_len)

            async with harness.drafter(script, hidden_state_data_type=FLOAT32):
                await asyncio.gather(
                    harness.generate(PROMPT, LENGTH, temperature=0.8, seed=7),
                    harness.generate(PROMPT2, LENGTH, temperature=0.5, seed=8),
                    harness.generate([*PROMPT2, 4], LENGTH),
                )
            assert len(target.weighed) > 3
            assert all(tree == named for tree, named in target.weighed)
            assert target.others > 1  # the greedy request's
            assert (harness.service.drafters.counters.rerooted > 0) == late

    run(body())


def test_who_did_not_ask_for_it_sends_trees() -> None:
    """A drafter of before: its Hello has no such field, and Welcome says nothing of it."""

    async def body() -> None:
        async with serving() as harness:

            async def script(session: DraftedSession) -> Any:
                return make_tree(next_tokens(harness, session))

            async with harness.drafter(script) as drafter:
                assert drafter.welcome.hidden_state_data_type == tensor_pb2.DATA_TYPE_UNSPECIFIED
                reply = await harness.generate(PROMPT, LENGTH)
            assert reply.usage.rounds == -(-(LENGTH - 1) // (DEPTH + 1))
            assert not harness.target.draft_plans

    run(body())
