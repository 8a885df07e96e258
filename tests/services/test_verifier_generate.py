"""Generate over loopback, without a drafter: plain decoding, limits, prefix cache, queueing, failures and the end."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.fake_target import FakeTarget
from tests.services.verifier_harness import collect, refused, request, run, serving, silent

PROMPT = [3, 0, 5, 0, 7]


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8, 15, 16, 17, 33, 64])
def test_plain_tokens_are_the_oracles(prompt_len: int) -> None:
    async def body() -> None:
        async with serving() as harness:
            prompt = [i % 7 for i in range(prompt_len)]
            reply = await harness.generate(prompt, 20)
            assert reply.tokens == harness.target.plain(prompt, 20)
            assert reply.finish_reason == pb.FINISH_REASON_LENGTH
            assert reply.usage.prompt_tokens == prompt_len
            assert (reply.usage.rounds, reply.usage.speculative_rounds) == (19, 0)
            await harness.idle()

    run(body())


def test_seed_decides_and_is_told() -> None:
    async def body() -> None:
        async with serving() as harness:
            first = await harness.generate(PROMPT, 20, temperature=1.0)
            again = await harness.generate(PROMPT, 20, temperature=1.0, seed=first.seed)
            other = await harness.generate(PROMPT, 20, temperature=1.0, seed=first.seed ^ 1)
            assert first.tokens == again.tokens == harness.target.plain(PROMPT, 20, temperature=1.0, seed=first.seed)
            assert other.tokens != first.tokens

    run(body())


def test_eos_stops_unless_ignored() -> None:
    async def body() -> None:
        target = FakeTarget(pages=64, page_size=4)
        plain = target.plain(PROMPT, 20)
        target.eos_token_ids = (plain[6],)
        async with serving(target=target) as harness:
            stopped = await harness.generate(PROMPT, 20)
            assert stopped.tokens == target.plain(PROMPT, 20, stop_ids=[plain[6]])
            assert stopped.finish_reason == pb.FINISH_REASON_STOP
            ignored = await harness.generate(PROMPT, 20, ignore_eos=True)
            assert ignored.tokens == plain

    run(body())


def test_without_max_tokens_the_context_limit_ends_it() -> None:
    async def body() -> None:
        target = FakeTarget(pages=64, page_size=4, context_limit=30)
        async with serving(target=target) as harness:
            reply = await harness.generate(PROMPT, None)
            assert len(PROMPT) + len(reply.tokens) == 30
            assert reply.finish_reason == pb.FINISH_REASON_LENGTH

    run(body())


def test_many_at_once_equal_each_alone() -> None:
    async def body() -> None:
        async with serving(pages=40, max_batch=5) as harness:
            prompts = [[i % 5, i, 0, *range(i)] for i in range(20)]
            replies = await asyncio.gather(*(harness.generate(p, 5 + len(p)) for p in prompts))
            for prompt, reply in zip(prompts, replies, strict=True):
                assert reply.tokens == harness.target.plain(prompt, 5 + len(prompt))
            await harness.idle()

    run(body())


def test_prefix_hits_give_the_same_tokens() -> None:
    async def body() -> None:
        async with serving() as harness:
            prompt = list(range(16))
            cold = await harness.generate(prompt, 12)
            warm = await harness.generate(prompt, 12)
            assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 12)  # one token at least is computed
            turn = prompt + cold.tokens
            follow_up = await harness.generate([*turn, 1, 2], 8)
            # Everything but the last token, whose KV was never made, in full pages.
            assert follow_up.usage.cached_tokens == (len(turn) - 1) // 4 * 4
            assert warm.tokens == cold.tokens == harness.target.plain(prompt, 12)
            assert follow_up.tokens == harness.target.plain([*turn, 1, 2], 8)
            await harness.idle()

    run(body())


def test_cached_pages_are_evicted_when_others_need_them() -> None:
    async def body() -> None:
        async with serving(pages=8) as harness:
            for start in range(6):
                prompt = [(start + i) % 11 for i in range(17)]
                assert (await harness.generate(prompt, 12)).tokens == harness.target.plain(prompt, 12)
                await harness.idle()

    run(body())


def test_a_full_line_refuses_and_the_others_go_on() -> None:
    async def body() -> None:
        # A silent drafter holds the first request, which holds all pages, for as long as the test wants.
        async with serving(pages=8, max_waiting=2) as harness, harness.drafter(silent) as drafter:
            tasks = []
            for _ in range(3):
                tasks.append(asyncio.create_task(harness.generate(PROMPT, 28)))
                await drafter.until(lambda: bool(drafter.sessions))
            while (load := await harness.stub.GetLoad(pb.GetLoadRequest())).waiting_requests < 2:
                pass
            assert load.kv_pages_free == 0
            code, details = await refused(harness.generate(PROMPT, 4))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, details
            await drafter.kill()
            for task in tasks:
                assert (await task).tokens == harness.target.plain(PROMPT, 28)
            await harness.idle()

    run(body())


BAD = [
    ("prompt_token_ids", {"prompt": []}),
    ("prompt_token_ids", {"prompt": [24]}),
    ("prompt_token_ids", {"prompt": [2**32 - 1]}),
    ("prompt_token_ids", {"prompt": [1] * 256}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -5}),
    ("max_tokens", {"max_tokens": 252}),
    ("max_tokens", {"max_tokens": 120}),  # within the context, beyond the whole cache
    ("sampling.temperature", {"temperature": float("nan")}),
    ("sampling.temperature", {"temperature": float("inf")}),
    ("sampling.temperature", {"temperature": -0.5}),
    ("speculation.node_limit", {"node_limit": 257}),
    ("speculation.mode", {"mode": 9}),
    ("stop_token_ids", {"stop_token_ids": [24]}),
]


def test_bad_requests_name_the_field_and_hurt_nobody() -> None:
    async def body() -> None:
        async with serving(pages=30) as harness:
            good = asyncio.create_task(harness.generate(PROMPT, 60))
            for name, fields in BAD:
                code, details = await refused(harness.generate(**{"prompt": PROMPT, **fields}))
                assert code is grpc.StatusCode.INVALID_ARGUMENT, fields
                assert details.startswith(name + ":"), details
            for name, value in [("top_p", 1.5), ("top_p", float("nan")), ("min_p", -0.1), ("top_p", -1.0)]:
                bad = request(PROMPT)
                setattr(bad.sampling, name, value)
                code, details = await refused(collect(harness.stub.Generate(bad)))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert details.startswith(f"sampling.{name}:")
            assert (await good).tokens == harness.target.plain(PROMPT, 60)
            await harness.idle()

    run(body())


def test_a_failed_step_ends_its_requests_only() -> None:
    async def body() -> None:
        async with serving(max_batch=1) as harness:
            call = harness.stub.Generate(request(PROMPT, 100))
            await call.read()
            waiting = asyncio.create_task(harness.generate(PROMPT, 10))
            harness.target.failure = RuntimeError("broken")
            code, _ = await refused(_drain(call))
            assert code is grpc.StatusCode.INTERNAL
            assert (await waiting).tokens == harness.target.plain(PROMPT, 10)
            await harness.idle()

    run(body())


async def _drain(call: grpc.aio.UnaryStreamCall) -> None:  # type: ignore[type-arg]
    while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass
    raise grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )


def test_info_and_load() -> None:
    async def body() -> None:
        async with serving(model_name="fake") as harness:
            info = await harness.stub.GetInfo(pb.GetInfoRequest())
            assert (info.model_name, info.vocab_size, info.context_limit, info.max_node_limit) == ("fake", 24, 256, 256)
            await harness.generate(PROMPT, 10)
            await harness.idle()
            load = await harness.stub.GetLoad(pb.GetLoadRequest())
            assert (load.kv_pages_total, load.kv_pages_free, load.committed_tokens) == (64, 64, 10)
            assert (load.running_requests, load.waiting_requests, load.drafters) == (0, 0, 0)

    run(body())


def test_stopping_finishes_what_runs_and_says_so_first() -> None:
    async def body() -> None:
        async with serving() as harness, open_channel(harness.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            call = harness.stub.Generate(request(PROMPT, 200))
            first = await call.read()
            stopping = asyncio.create_task(harness.service.stop())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            tokens = list(first.token_ids)
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                tokens += message.token_ids
            await stopping
            assert tokens == harness.target.plain(PROMPT, 200)

    run(body())
