"""The gated MLP of a dense layer, and of an expert that all rows share.

Shapes: E hidden, I intermediate.
"""

import torch

from draftwood_kernels.silu_and_mul import silu_and_mul
from draftwood_verifier.model.weights import Linear, Part, WeightReader


class GatedMlp:
    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        return self._down(silu_and_mul(self._gate_up(normed)))


def load_mlp(reader: WeightReader, hidden: int, intermediate: int) -> Linear:
    """Gives the whole output on every rank."""
    return reader.share.summed(load_partial_mlp(reader, hidden, intermediate))


def load_partial_mlp(reader: WeightReader, hidden: int, intermediate: int) -> GatedMlp:
    """Gives what this rank contributes to the output."""
    held = reader.inner("intermediate_size", intermediate)
    gate_up = [Part(name=name, rows=intermediate, held=held) for name in ("gate_proj", "up_proj")]
    down = reader.linear([Part(name="down_proj", rows=hidden)], intermediate, held)
    return GatedMlp(reader.linear(gate_up, hidden), down)
