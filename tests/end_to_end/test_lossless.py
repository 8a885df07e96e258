"""The promise: what a request gets depends on nobody's draft and on nobody's neighbours, token for token."""

import random

import pytest

from draftwood_wire.v1.gateway_service_pb2 import TextRequest
from tests.services.processes import Services
from tests.services.requests import GREEDY, held_out_prompts, request, sampled

PROMPTS = 32
TOKENS = 128
BATCH = 8
MODES = ("plain", "chain", "tree")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return held_out_prompts(PROMPTS)


def requests_of(prompts: list[str], law: str, modes: list[str]) -> list[TextRequest]:
    """One request a prompt; its seed belongs to the prompt, not to the batch that it lands in."""
    return [
        request(prompt, mode, GREEDY if law == "greedy" else sampled(seed=1000 + index), TOKENS)
        for index, (prompt, mode) in enumerate(zip(prompts, modes, strict=True))
    ]


def alone(services: Services, requests: list[TextRequest]) -> list[list[int]]:
    return [list(services.generate(r).token_ids) for r in requests]


def in_batches(services: Services, requests: list[TextRequest], seed: int) -> list[list[int]]:
    """Batches of eight whose members are drawn by `seed`."""
    order = random.Random(seed).sample(range(len(requests)), len(requests))
    outputs: dict[int, list[int]] = {}
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        answers = services.generate_together([requests[index] for index in batch])
        outputs |= {index: list(answer.token_ids) for index, answer in zip(batch, answers, strict=True)}
    return [outputs[index] for index in range(len(requests))]


@pytest.mark.parametrize("law", ["greedy", "sampled"])
def test_every_way_of_decoding_gives_the_same_tokens(services: Services, prompts: list[str], law: str) -> None:
    reference = alone(services, requests_of(prompts, law, ["plain"] * PROMPTS))
    assert [len(tokens) for tokens in reference] == [TOKENS] * PROMPTS
    ways = {
        "chain, alone": alone(services, requests_of(prompts, law, ["chain"] * PROMPTS)),
        "tree, alone": alone(services, requests_of(prompts, law, ["tree"] * PROMPTS)),
        "plain, in batches": in_batches(services, requests_of(prompts, law, ["plain"] * PROMPTS), seed=1),
        "tree, in batches": in_batches(services, requests_of(prompts, law, ["tree"] * PROMPTS), seed=2),
        "mixed, in batches": in_batches(
            services, requests_of(prompts, law, [MODES[i % len(MODES)] for i in range(PROMPTS)]), seed=3
        ),
    }
    different = {
        way: [index for index, (got, want) in enumerate(zip(outputs, reference, strict=True)) if got != want]
        for way, outputs in ways.items()
    }
    assert not any(different.values()), f"prompts whose tokens differ from plain decoding alone: {different}"


def test_speculation_is_really_on_and_really_off(services: Services, prompts: list[str]) -> None:
    plain, chain, tree = (services.generate(request(prompts[0], mode)).usage for mode in MODES)
    assert (plain.speculative_rounds, plain.proposed_nodes, plain.rounds) == (0, 0, TOKENS - 1)
    for usage in (chain, tree):
        assert usage.speculative_rounds > 0
        assert usage.accepted_nodes > 0
        assert usage.rounds < TOKENS - 1
    # Every round commits one token of the target's own beside the accepted nodes.
    assert tree.rounds + tree.accepted_nodes == TOKENS - 1
