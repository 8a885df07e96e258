"""With the head on the verifier, trees and tokens are those of a drafter that has the head, whatever the ranks."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import chi2
from transformers import AutoModelForCausalLM

from draftwood_drafter.__main__ import make_engine, make_hello
from draftwood_drafter.config import DrafterConfig, Head
from draftwood_drafter.speculation_client import Backoff, SpeculationClient
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_wire.v1 import sampling_pb2
from draftwood_wire.v1 import verifier_service_pb2 as pb
from tests.services.verifier_harness import Reply, run
from tests.services.verifier_process import Process, short_request, verifier
from tests.unit.drafter.pair import Pair, make_pair

LENGTH = 24
PROMPTS = [[5, 0, 9, 33, 2], [7, 7, 0, 12] * 5, [90, 1]]
CHAIN, TREE = sampling_pb2.SPECULATION_MODE_CHAIN, sampling_pb2.SPECULATION_MODE_TREE
REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    (prompt, {"mode": mode, "node_limit": nodes, "temperature": temperature, "seed": 3 + index})
    for mode, nodes in ((CHAIN, 3), (TREE, 1), (TREE, 12))
    for temperature in (0.0, 0.8)
    for index, prompt in enumerate(PROMPTS)
]
# One rank and several add up the same products in another order: paths' log-probabilities were up to 1.1e-5 apart, at
# logits up to 20. A tree could differ where two paths are that near; no two neighbours in the trees compared here are.
MARGIN = 3e-5


def make_talkative_pair(folder: Path, *, tie: bool) -> Pair:
    """A random pair whose target says one of four words most of the time, so that the draft is sometimes right."""
    pair = make_pair(folder, seed=1 if tie else 2, tie=tie)
    tensors = load_file(pair.target / "model.safetensors")
    tensors["model.embed_tokens.weight" if tie else "lm_head.weight"][3:7] *= 3
    save_file(tensors, pair.target / "model.safetensors", metadata={"format": "pt"})
    return pair


@contextlib.asynccontextmanager
async def drafting(pair: Pair, served: Process, head: Head) -> AsyncIterator[None]:
    config = DrafterConfig(target=pair.target, draft=pair.draft, verifier=served.address, head=head)
    engine = make_engine(config)
    client = SpeculationClient(
        engine, make_hello(config, engine.model), served.address, Backoff(0.01, 0.1), DrafterTelemetry(metrics="")
    )
    running = asyncio.create_task(client.run())
    try:
        while (await served.stub.GetLoad(pb.GetLoadRequest())).drafters == 0:
            assert not running.done()
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert engine.cache.pages_free == engine.cache.pages_total


async def rounds(served: Process, prompt: list[int], options: dict[str, Any]) -> list[pb.RoundReport]:
    request = short_request(prompt, LENGTH, report_rounds=True, ignore_eos=True, **options)
    return [report async for message in served.stub.Generate(request) for report in message.rounds]


async def all_rounds(pair: Pair, head: Head, ranks: int) -> tuple[list[list[pb.RoundReport]], pb.GetLoadResponse]:
    async with verifier(pair.target, ranks=ranks) as served, drafting(pair, served, head):
        reports = await asyncio.gather(*(rounds(served, *request) for request in REQUESTS))
        return reports, await served.stub.GetLoad(pb.GetLoadRequest())


def check_apart(reports: list[pb.RoundReport]) -> None:
    for report in reports:
        scores = np.array(report.tree.log_probs)
        assert (np.diff(scores) < -MARGIN).all(), f"round {report.round} has a near tie"


def check_same(one: list[pb.RoundReport], other: list[pb.RoundReport]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.base_len == theirs.base_len
        assert mine.token_ids == theirs.token_ids
        assert mine.path == theirs.path
        assert mine.tree.token_ids == theirs.tree.token_ids
        assert mine.tree.parents == theirs.tree.parents
        np.testing.assert_allclose(mine.tree.log_probs, theirs.tree.log_probs, atol=MARGIN)


@pytest.mark.parametrize("tie", [True, False])
def test_trees_and_tokens_are_those_of_a_drafter_with_a_head(tmp_path: Path, tie: bool) -> None:
    pair = make_talkative_pair(tmp_path, tie=tie)

    async def body() -> None:
        expected, _ = await all_rounds(pair, Head.DRAFTER, ranks=1)
        for reports in expected:
            check_apart(reports)
        for (_, options), reports in zip(REQUESTS, expected, strict=True):
            # Round 0 is prefill's; the last round may have no room for a tree.
            assert all(0 < len(r.tree.token_ids) <= options["node_limit"] for r in reports[1:-1])
        assert sum(len(r.path) > 1 for reports in expected for r in reports) > 20
        for ranks in (1, 2):
            together, load = await all_rounds(pair, Head.VERIFIER, ranks)
            for mine, theirs in zip(expected, together, strict=True):
                check_same(mine, theirs)
            assert (load.refused_proposals, load.stale_proposals) == (0, 0)

    run(body(), limit_s=240)


SAMPLED = {"temperature": 0.8, "top_k": 5}
ANSWERS = 600


def law_after(pair: Pair, tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What sampling with SAMPLED gives after these tokens, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    with torch.inference_mode():
        best = model(torch.tensor([tokens])).logits[0, -1].double().topk(SAMPLED["top_k"])
    law = np.zeros(model.config.vocab_size)
    law[best.indices.numpy()] = (best.values / SAMPLED["temperature"]).softmax(dim=0).numpy()
    return law


@pytest.mark.parametrize("ranks", [1, 2])
def test_rejection_gives_tokens_of_the_targets_law(tmp_path: Path, ranks: int) -> None:
    pair = make_talkative_pair(tmp_path, tie=True)
    prompt = PROMPTS[1]

    room = asyncio.Semaphore(100)  # a verifier refuses what it can't queue

    async def answer(served: Process, seed: int) -> Reply:
        async with room:
            return await served.generate(prompt, length=3, seed=seed, node_limit=4, ignore_eos=True, **SAMPLED)

    async def body() -> None:
        async with (
            verifier(pair.target, "--verification", "rejection", ranks=ranks) as served,
            drafting(pair, served, Head.VERIFIER),
        ):
            greedy = await served.generate(prompt, length=LENGTH, ignore_eos=True)
            replies = await asyncio.gather(*(answer(served, seed) for seed in range(ANSWERS)))
        async with verifier(pair.target) as plain:
            assert greedy.tokens == (await plain.generate(prompt, length=LENGTH, ignore_eos=True)).tokens
        assert sum(reply.usage.accepted_nodes for reply in replies) > ANSWERS / 10
        seen = Counter((reply.tokens[0], reply.tokens[1]) for reply in replies)
        statistic, freedom = 0.0, 0
        for first in {first for first, _ in seen}:
            counts = np.array([seen[first, second] for second in range(len(law_after(pair, prompt)))])
            expected = law_after(pair, [*prompt, first]) * counts.sum()
            assert not counts[expected == 0].any()
            likely = expected > 5
            statistic += float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
            freedom += max(0, int(likely.sum()) - 1)
        assert freedom > 3
        # The verifier's generator has no seed to fix: a bound that chance never reaches. The fine test is the unit's.
        assert chi2.sf(statistic, freedom) > 1e-6

    run(body(), limit_s=240)


def test_a_drafter_with_a_head_is_no_use_to_rejection(tmp_path: Path) -> None:
    pair = make_talkative_pair(tmp_path, tie=True)

    async def body() -> None:
        async with verifier(pair.target, "--verification", "rejection") as served:
            config = DrafterConfig(target=pair.target, draft=pair.draft, verifier=served.address)
            hello = make_hello(config, make_engine(config).model)
            with pytest.raises(grpc.aio.AioRpcError, match="--head verifier") as refusal:
                await served.stub.Speculate(iter([pb.SpeculateRequest(hello=hello)])).read()
            assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(body())
