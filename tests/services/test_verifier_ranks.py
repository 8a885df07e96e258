"""A verifier on several ranks under torchrun gives, over gRPC and with trees, the tokens and features of one."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.runner import load_runner
from draftwood_wire.tree import TokenTree
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.processes import children_of, watched
from tests.services.scripted_drafter import DraftedSession, ScriptedDrafter, make_tree
from tests.services.verifier_harness import Reply, run
from tests.services.verifier_process import HIDDEN, LENGTH, VOCAB, Process, short_request, verifier, write_checkpoint
from tests.unit.parallel.steadiness import check_steady

PROMPTS = [[5, 0, 9, 33, 2], [7, 7, 0, 12] * 5]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "seed": 0},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.8, "seed": 2, "top_k": 4},
    {"temperature": 0.8, "seed": 3, "top_p": 0.9},
    {"temperature": 0.8, "seed": 4, "min_p": 0.1},
    {"temperature": 0.8, "seed": 5, "top_k": 30, "top_p": 0.95, "min_p": 0.01},
]
REQUESTS = [(prompt, sampling) for sampling in SAMPLINGS for prompt in PROMPTS]
Texts = list[list[int]]


async def drafted(served: Process, texts: Texts) -> tuple[list[Reply], dict[tuple[int, ...], dict[int, Any]]]:
    """All requests at once, drafted for by somebody who knows what comes: replies, features by text and position."""

    async def script(session: DraftedSession) -> TokenTree:
        """A wrong sibling comes first, and the depth at which the chain errs changes."""
        length = len(session.tokens)
        text = next(text for text in texts if text[:length] == session.tokens)
        tokens = [*text[length : length + length % 5], (text[length - 1] + 1) % VOCAB]
        return make_tree([(tokens[0] + 1) % VOCAB, *tokens], [0, 0, *range(2, len(tokens) + 1)])

    async with ScriptedDrafter(
        served.address, script, vocab_size=VOCAB, hidden_size=HIDDEN, layer_ids=(0, 2)
    ) as drafter:
        replies = await asyncio.gather(*(served.generate(prompt, **sampling) for prompt, sampling in REQUESTS))
        await drafter.until(lambda: all(session.closed for session in drafter.sessions.values()))
        return replies, {tuple(session.tokens): session.features for session in drafter.sessions.values()}


@pytest.mark.parametrize(("model_type", "ranks"), [("qwen3", 2), ("qwen3", 4), ("qwen3_moe", 2)])
def test_ranks_together_give_the_tokens_of_one(model_type: str, ranks: int, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, model_type)

    async def body() -> None:
        async with verifier(checkpoint) as alone:
            plain = [(await alone.generate(prompt, **sampling)).tokens for prompt, sampling in REQUESTS]
            texts = [prompt + tokens for (prompt, _), tokens in zip(REQUESTS, plain, strict=True)]
            _, features = await drafted(alone, texts)
        check_all_steady(checkpoint, texts)
        async with verifier(checkpoint, ranks=ranks) as together:
            assert (await together.generate(PROMPTS[0], **SAMPLINGS[0])).tokens == plain[0]
            replies, features_together = await drafted(together, texts)
            load = await together.stub.GetLoad(pb.GetLoadRequest())
        assert [reply.tokens for reply in replies] == plain
        assert all(reply.usage.accepted_nodes > 10 for reply in replies)
        assert load.kv_pages_free == load.kv_pages_total
        assert features.keys() == features_together.keys()
        for text, rows in features.items():
            assert rows.keys() == features_together[text].keys() == set(range(len(text) - 1))
            for position, row in rows.items():
                np.testing.assert_allclose(features_together[text][position], row, atol=1e-4)

    run(body(), limit_s=240)


def check_all_steady(checkpoint: Path, texts: Texts) -> None:
    runner = load_runner(checkpoint, pages=64, page_size=4)
    for text, (prompt, sampling) in zip(texts, REQUESTS, strict=True):
        check_steady(runner, text, len(prompt), SamplingParams(**sampling), table=list(range(64)))


def test_sigterm_to_torchrun_lets_requests_finish(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)

    async def body() -> None:
        async with verifier(checkpoint, ranks=2) as served:
            alone = await served.generate(PROMPTS[0])
            with watched(children_of(served.process.pid)) as survivors:
                call = served.stub.Generate(short_request(PROMPTS[0]))
                tokens = list((await call.read()).token_ids)
                served.process.send_signal(signal.SIGTERM)
                while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    tokens += message.token_ids
                assert tokens == alone.tokens
                assert len(tokens) == LENGTH
                assert await asyncio.to_thread(survivors, 20.0) == []
            await asyncio.to_thread(served.process.wait)

    run(body(), limit_s=120)
