"""The target's own text: what a drafter has to guess is what the target would say, not what people wrote.

A running verifier writes it, so that it comes as fast as the target can be served, from any number of devices.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwood_wire.transport import open_channel
from draftwood_wire.v1 import sampling_pb2, verifier_service_pb2
from draftwood_wire.v1.verifier_service_pb2_grpc import VerifierServiceStub

FILE = "labels.safetensors"


@dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """`sequences` texts of up to `prompt_tokens + new_tokens`; `sampled_share` of them at `temperature`."""

    output: Path
    verifier: str
    sequences: int
    prompt_tokens: int = 32
    new_tokens: int = 224
    sampled_share: float = 0.3
    temperature: float = 0.8
    concurrency: int = 64
    seed: int = 1


def generate_labels(plan: LabelPlan, tokens: NDArray[np.int32]) -> None:
    """Let the verifier continue random windows of `tokens` int32 [n]; writes ids [sequences, length] and lengths.

    Ids behind a row's length are 0. Raises grpc.RpcError when the verifier can't be reached or refuses.
    """
    generator = np.random.default_rng(plan.seed)
    starts = generator.integers(0, len(tokens) - plan.prompt_tokens, plan.sequences)
    prompts = [tokens[start : start + plan.prompt_tokens].tolist() for start in starts]
    rows = asyncio.run(_continue_all(plan, prompts))
    ids = torch.zeros(len(rows), plan.prompt_tokens + plan.new_tokens, dtype=torch.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    plan.output.mkdir(parents=True, exist_ok=True)
    save_file({"token_ids": ids, "lengths": torch.tensor([len(row) for row in rows])}, plan.output / FILE)


def load_labels(folder: Path) -> tuple[Tensor, Tensor]:
    """(token_ids int64 [sequences, length], lengths int64 [sequences])."""
    tensors = load_file(folder / FILE)
    return tensors["token_ids"].long(), tensors["lengths"].long()


async def _continue_all(plan: LabelPlan, prompts: list[list[int]]) -> list[list[int]]:
    rows: list[list[int]] = [[]] * len(prompts)
    queue = iter(range(len(prompts)))
    done = 0
    async with open_channel(plan.verifier) as channel:
        stub: Any = VerifierServiceStub(channel)  # its type stubs know blocking calls only

        async def work() -> None:
            nonlocal done
            for index in queue:
                rows[index] = await _continue(stub, plan, prompts[index], index)
                done += 1
                if done % 64 == 0:
                    print(f"labels: {done} of {len(prompts)}", flush=True)

        await asyncio.gather(*(work() for _ in range(plan.concurrency)))
    return rows


async def _continue(stub: Any, plan: LabelPlan, prompt: list[int], index: int) -> list[int]:
    sampled = index < plan.sequences * plan.sampled_share
    request = verifier_service_pb2.GenerateRequest(
        prompt_token_ids=prompt,
        max_tokens=plan.new_tokens,
        sampling=sampling_pb2.SamplingParams(temperature=plan.temperature if sampled else 0.0, seed=index),
        speculation=sampling_pb2.SpeculationParams(mode=sampling_pb2.SPECULATION_MODE_OFF),
    )
    row = list(prompt)
    async for response in stub.Generate(request):
        row += response.token_ids
    return row
