"""A verifier on two hosts, each with a torchrun of its own, gives the tokens of one rank."""

from pathlib import Path
from typing import Any

import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.runner import load_runner
from tests.services.verifier_harness import run
from tests.services.verifier_hosts import verifier_on_hosts
from tests.services.verifier_process import LENGTH, verifier, write_checkpoint
from tests.unit.parallel.steadiness import check_steady

SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0.0, "seed": 0}, {"temperature": 0.8, "seed": 1}]
REQUESTS = [(prompt, sampling) for sampling in SAMPLINGS for prompt in ([5, 0, 9, 33, 2], [7, 7, 0, 12] * 5)]


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_two_hosts_give_the_tokens_of_one_rank(model_type: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, model_type)

    async def body() -> None:
        async with verifier(checkpoint) as alone:
            plain = [(await alone.generate(prompt, **sampling)).tokens for prompt, sampling in REQUESTS]
        assert {len(tokens) for tokens in plain} == {LENGTH}
        check_all_steady(checkpoint, plain)
        async with verifier_on_hosts(checkpoint) as (together, hosts):
            assert [len(host.ranks) for host in hosts] == [1, 1]
            assert [(await together.generate(prompt, **sampling)).tokens for prompt, sampling in REQUESTS] == plain

    run(body(), limit_s=180)


def check_all_steady(checkpoint: Path, plain: list[list[int]]) -> None:
    runner = load_runner(checkpoint, pages=32, page_size=4)
    for (prompt, sampling), tokens in zip(REQUESTS, plain, strict=True):
        check_steady(runner, prompt + tokens, len(prompt), SamplingParams(**sampling), table=list(range(32)))
