"""A verifier on loopback around a fake target, and a client for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from draftwood_verifier.budget.cost_table import Axes, CostTable, batch_axis
from draftwood_verifier.budget.policy import Policy
from draftwood_verifier.config import VerifierConfig
from draftwood_verifier.service import VerifierService
from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import sampling_pb2, verifier_service_pb2_grpc
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.fake_target import FakeTarget, feature_rows
from tests.services.scripted_drafter import DraftedSession, Script, ScriptedDrafter, make_tree

# A test that hangs fails here, with a traceback of where.
LIMIT_S = 60.0


def run(coroutine: Coroutine[Any, Any, None], *, limit_s: float = LIMIT_S) -> None:
    asyncio.run(asyncio.wait_for(coroutine, limit_s))


@dataclass
class Reply:
    tokens: list[int]
    finish_reason: int
    usage: pb.GenerateUsage
    seed: int
    messages: int


@dataclass
class Harness:
    target: FakeTarget
    service: VerifierService
    address: str
    stub: Any

    async def generate(self, prompt: list[int], max_tokens: int | None = 16, **fields: Any) -> Reply:
        return await collect(self.stub.Generate(request(prompt, max_tokens, **fields)))

    def drafter(self, script: Script, **options: Any) -> ScriptedDrafter:
        options = {"vocab_size": self.target.vocab_size, "hidden_size": self.target.hidden_size, **options}
        return ScriptedDrafter(self.address, script, **options)

    async def idle(self) -> None:
        """Wait until no request is left, then check the ledger."""
        await self.service.engine.idle()
        self.service.scheduler.check_ledger()
        allocator = self.service.scheduler.allocator
        assert allocator.available == allocator.total, "pages are still held"


def request(
    prompt: list[int],
    max_tokens: int | None = 16,
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    mode: int = sampling_pb2.SPECULATION_MODE_TREE,
    node_limit: int = 0,
    **fields: Any,
) -> pb.GenerateRequest:
    sampling = sampling_pb2.SamplingParams(temperature=temperature, seed=seed)
    speculation = sampling_pb2.SpeculationParams(mode=mode, node_limit=node_limit)  # type: ignore[arg-type]
    return pb.GenerateRequest(
        prompt_token_ids=prompt, max_tokens=max_tokens, sampling=sampling, speculation=speculation, **fields
    )


async def collect(call: Any) -> Reply:
    messages = [message async for message in call]
    assert messages[0].HasField("seed")
    assert all(m.HasField("usage") and not m.finish_reason and m.token_ids for m in messages[:-1])
    last = messages[-1]
    tokens = [token for message in messages for token in message.token_ids]
    usage = last.usage
    assert usage.completion_tokens == len(tokens) == 1 + usage.rounds + usage.accepted_nodes
    return Reply(tokens, last.finish_reason, usage, messages[0].seed, len(messages))


@contextlib.asynccontextmanager
async def serving(
    *, pages: int = 64, page_size: int = 4, target: FakeTarget | None = None, **settings: Any
) -> AsyncIterator[Harness]:
    target = target or FakeTarget(pages=pages, page_size=page_size)
    # A drafter that should be waited for never runs into this; tests of deadlines set their own.
    settings = {"draft_wait_ms": 30_000.0, "prefill_chunk": 16, "drain_s": 5.0, **settings}
    config = VerifierConfig(target=Path("fake"), kv_pages=pages, page_size=page_size, **settings)
    axes = Axes(sequences=batch_axis(config.max_batch))
    # What a measurement at start-up would have found.
    flat = [[[max(1e-4, target.step_s) for _ in axes.nodes] for _ in axes.sequences] for _ in axes.context]
    policy = Policy(CostTable(axes, flat), groups=config.draft_groups)
    service = VerifierService(config, target, policy, tokenizer_fingerprint="f" * 64)
    await service.start()
    address = f"127.0.0.1:{service.port}"
    channel = open_channel(address)
    try:
        yield Harness(target, service, address, verifier_service_pb2_grpc.VerifierServiceStub(channel))
    finally:
        await channel.close()
        await service.stop()


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """The status of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was not refused")


async def silent(session: object) -> None:
    """A drafter that never answers."""
    del session


def oracle_script(target: FakeTarget, **plain: Any) -> Script:
    """A drafter that knows the next three tokens of every session, at T = 0."""

    async def script(session: Any) -> Any:
        from_root = target.plain(session.tokens, 3, **plain)
        return make_tree(from_root)

    return script


async def joined(harness: Harness) -> Policy:
    """The policy, once it knows of the drafter."""
    while not harness.service.drafters.links:
        await asyncio.sleep(0)
    return harness.service.policy


def check_features(session: DraftedSession, target: FakeTarget) -> None:
    """Every position before the root, and each with the features of its own token."""
    positions = np.arange(len(session.tokens) - 1)
    wanted = feature_rows(positions, np.array(session.tokens[:-1]), (1, 3), target.hidden_size)
    np.testing.assert_array_equal(np.stack([session.features[p] for p in positions.tolist()]), wanted)
