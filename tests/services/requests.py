"""Requests on the held-out prompts of the embedded pair."""

from draftwood.demo import read_prompts
from draftwood.models import embedded_pair
from draftwood_wire.v1.gateway_service_pb2 import TextRequest
from draftwood_wire.v1.sampling_pb2 import (
    SPECULATION_MODE_CHAIN,
    SPECULATION_MODE_OFF,
    SPECULATION_MODE_TREE,
    SamplingParams,
    SpeculationParams,
)

MODES = {"plain": SPECULATION_MODE_OFF, "chain": SPECULATION_MODE_CHAIN, "tree": SPECULATION_MODE_TREE}

GREEDY = SamplingParams(temperature=0.0)
NODE_LIMIT = 12


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, top_p=0.9, seed=seed)


def held_out_prompts(count: int) -> list[str]:
    prompts = read_prompts(embedded_pair().prompts, count)
    assert len(prompts) == count, f"the embedded pair has only {len(prompts)} held-out prompts"
    return prompts


def request(
    prompt: str, mode: str, sampling: SamplingParams = GREEDY, max_tokens: int = 128, node_limit: int = NODE_LIMIT
) -> TextRequest:
    """A request that runs to `max_tokens`, whatever the model says."""
    return TextRequest(
        prompt=prompt,
        sampling=sampling,
        max_tokens=max_tokens,
        ignore_eos=True,
        speculation=SpeculationParams(mode=MODES[mode], node_limit=node_limit),
    )
