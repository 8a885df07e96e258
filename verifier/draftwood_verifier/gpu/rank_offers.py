"""The end of a step in a group: this rank's best token of every row, small enough for the host to gather and walk.

Shapes: K logit rows, by the step's size, v tokens of this rank.
"""

import torch

from draftwood_kernels.packed_buffer import Field, PackedBuffer
from draftwood_kernels.sample.kernel import best_tokens
from draftwood_verifier.gpu.step_inputs import StepInputs
from draftwood_verifier.gpu.step_size import StepSize
from draftwood_verifier.parallel.sampling import ShardedSampler
from draftwood_verifier.plan import Walk
from draftwood_verifier.runner import Paths, tree_walk


class RankOffers:
    """For steps that truncate nothing: what top-k and top-p leave, no rank knows alone."""

    def __init__(self, size: StepSize, sampler: ShardedSampler, first_token: int, device: torch.device) -> None:
        self._sampler = sampler
        self._first_token = first_token
        fields = {
            "scores": Field(shape=(size.logits,), dtype=torch.float32),
            "tokens": Field(shape=(size.logits,), dtype=torch.int32),
        }
        self._buffer = PackedBuffer(fields, device)

    def queue(self, logits: torch.Tensor, inputs: StepInputs) -> None:
        """logits [K, v]."""
        scores, tokens = best_tokens(
            logits,
            inputs["temperatures"],
            inputs["seeds"],
            inputs["draw_positions"],
            first_token=self._first_token,
        )
        self._buffer.device["scores"].copy_(scores)
        self._buffer.device["tokens"].copy_(tokens)

    def download(self) -> None:
        """Queue the copy of the offers to the host."""
        self._buffer.download()

    def settle(self) -> None:
        """Wait until they are there."""
        self._buffer.settle()

    def paths(self, walks: list[Walk]) -> Paths:
        """On rank 0 tokens and nodes of each walk, once the device is done; all ranks have to ask."""
        scores, tokens = self._buffer.host["scores"].numpy(), self._buffer.host["tokens"].numpy()
        return self._sampler.walk_offered([tree_walk(walk) for walk in walks], scores, tokens)
