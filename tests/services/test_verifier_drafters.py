"""Who may draft, and what becomes of those who do not behave; and that nothing leaks when clients leave."""

import asyncio
import random
from typing import Any

import grpc
import pytest

from draftwood_wire.tree import TokenTree
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.fake_target import FakeTarget
from tests.services.scripted_drafter import DraftedSession, make_tree
from tests.services.verifier_harness import Harness, refused, request, run, serving, silent

PROMPT = [3, 0, 5, 0, 7, 1]

UNFIT: list[tuple[str, dict[str, Any]]] = [
    ("vocab_size", {"vocab_size": 25}),
    ("hidden_size", {"hidden_size": 3}),
    ("num_target_layers", {"num_target_layers": 5}),
    ("tokenizer_fingerprint", {"tokenizer_fingerprint": "0" * 64}),
    ("target_layer_ids", {"layer_ids": ()}),
    ("target_layer_ids", {"layer_ids": (4,)}),
    ("target_layer_ids", {"layer_ids": (1, 1)}),
    ("block_size", {"block_size": 1}),
    ("node_limit", {"node_limit": 0}),
    ("feature_data_type", {"feature_data_type": 0}),
    ("feature_data_type", {"feature_data_type": 9}),
    ("hidden_state_data_type", {"hidden_state_data_type": 9}),
]


@pytest.mark.parametrize(("name", "options"), UNFIT)
def test_unfit_drafters_are_told_what_differs(name: str, options: dict[str, Any]) -> None:
    async def body() -> None:
        async with serving() as harness:
            code, details = await refused(harness.drafter(silent, **options).__aenter__())
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert details.startswith(name + ":")
            assert not harness.service.drafters.links
            assert (await harness.generate(PROMPT, 5)).tokens == harness.target.plain(PROMPT, 5)

    run(body())


def test_the_first_frame_is_hello() -> None:
    async def body() -> None:
        async with serving() as harness:
            call = harness.stub.Speculate()
            await call.write(pb.SpeculateRequest(proposals=pb.ProposalBatch()))
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(body())


def test_welcome_says_the_limits_in_force() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(silent, node_limit=5000) as drafter:
            assert drafter.welcome.node_limit == 256
            assert drafter.welcome.feature_data_type == 1

    run(body())


def test_a_drafter_that_does_not_read_is_dropped() -> None:
    async def body() -> None:
        # 20 MB of features, more than the transport buffers by itself.
        target = FakeTarget(pages=512, page_size=4, hidden_size=512)
        async with serving(pages=512, target=target, draft_wait_ms=50.0) as harness:
            harness.service.speculation.queue_limit_bytes = 200_000
            call = harness.stub.Speculate()
            await call.write(pb.SpeculateRequest(hello=harness.drafter(silent).hello))
            await call.read()
            prompts = [[i % 24, *range(20)] * 10 for i in range(24)]
            replies = await asyncio.gather(*(harness.generate(p, 40) for p in prompts))
            for prompt, reply in zip(prompts, replies, strict=True):
                assert reply.tokens == harness.target.plain(prompt, 40)
            assert not harness.service.drafters.links
            call.cancel()

    run(body())


def test_cancelled_requests_free_everything_at_once() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(silent) as drafter:
            calls = [harness.stub.Generate(request(PROMPT, 20)) for _ in range(3)]
            for call in calls:
                await call.read()
            for call in calls:
                call.cancel()
            await drafter.until(lambda: all(s.closed for s in drafter.sessions.values()))
            await harness.idle()
            assert len(drafter.sessions) == 3

    run(body())


async def _one(harness: Harness, rng: random.Random, number: int) -> None:
    prompt = [rng.randrange(24) for _ in range(rng.randint(1, 30))]
    if number % 3 == 0:
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, *prompt]
    max_tokens = rng.randint(1, 30)
    options: dict[str, Any] = {"temperature": rng.choice([0.0, 0.7]), "seed": number}
    call = harness.stub.Generate(request(prompt, max_tokens, **options))
    keep = rng.choice([0, 1, 2, 3, 1000])
    tokens: list[int] = []
    for _ in range(keep):
        message = await call.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            assert tokens == harness.target.plain(prompt, max_tokens, **options)
            return
        tokens += message.token_ids
    call.cancel()


def test_ledger_after_500_requests_with_random_cancellations() -> None:
    async def body() -> None:
        async with serving(pages=48, max_batch=12, max_waiting=600) as harness:
            rng = random.Random(20)

            async def script(session: DraftedSession) -> TokenTree:
                del session
                return make_tree([rng.randrange(24) for _ in range(rng.randint(0, 7))])

            async with harness.drafter(script) as drafter:
                numbers = iter(range(500))

                async def client() -> None:
                    for number in numbers:
                        await _one(harness, rng, number)
                        harness.service.scheduler.check_ledger()

                await asyncio.gather(*(client() for _ in range(24)))
                await harness.idle()
                load = await harness.stub.GetLoad(pb.GetLoadRequest())
                assert (load.drafted_sessions, load.kv_pages_free, load.running_requests) == (0, 48, 0)
                await drafter.until(lambda: all(s.closed for s in drafter.sessions.values()))

    run(body())
