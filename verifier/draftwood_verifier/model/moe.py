"""Mixtures of experts: a router sends every row to a few of a layer's MLPs, and their weighted outputs are summed.

Routers compute in float32 whatever the rows' type is, from the logits on.

Shapes: N rows, E hidden, K experts a row, X experts of the layer.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.quantized_linear import QuantizedLinear
from draftwood_verifier.model.experts import ExpertLinears, Experts, place_experts
from draftwood_verifier.model.layer import Mlp
from draftwood_verifier.model.weights import Linear, Part, WeightReader
from draftwood_verifier.parallel.experts import held_experts


class Router(Protocol):
    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """normed [N, E] -> weights float32 [N, K] and experts int64 [N, K]."""


class MixtureOfExperts:
    """Gives what the held experts and this rank's part of the shared one contribute to the output."""

    def __init__(self, router: Router, experts: Experts, shared: Mlp | None = None) -> None:
        """`shared` sees every row."""
        self._router = router
        self._experts = experts
        self._shared = shared

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        out = self._experts(normed, *self._router(normed))
        return out if self._shared is None else out.add_(self._shared(normed))


class SoftmaxRouter:
    """The K most probable experts, weighted by their probabilities, which `normalize` makes sum to one."""

    def __init__(self, gate: Linear, experts_a_row: int, *, normalize: bool) -> None:
        """gate: [N, E] -> logits [N, X]."""
        self._gate = gate
        self._experts_a_row = experts_a_row
        self._normalize = normalize

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(self._gate(normed), dim=-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self._experts_a_row, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True) if self._normalize else weights, experts


@dataclass(frozen=True, kw_only=True)
class SigmoidRouter:
    """Experts are chosen by their score plus a bias and weighted by the score alone; logits are float32 too.

    Of `groups` equal groups of experts only the `groups_a_row` with the highest sums of their two best compete.
    """

    gate: Linear  # float32 [N, E] -> [N, X]
    bias: torch.Tensor  # float32 [X]
    experts_a_row: int
    groups: int
    groups_a_row: int
    normalize: bool
    scale: float

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.gate(normed.float()).sigmoid_()
        experts = self._limited(scores + self.bias).topk(self.experts_a_row, dim=-1).indices
        weights = scores.gather(1, experts)
        if self.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * self.scale, experts

    def _limited(self, competing: torch.Tensor) -> torch.Tensor:
        """[N, X] with -inf outside of the best groups."""
        if self.groups_a_row == self.groups:
            return competing
        grouped = competing.view(len(competing), self.groups, -1)
        best = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(self.groups_a_row, dim=-1).indices
        outside = torch.ones(grouped.shape[:2], dtype=torch.bool, device=competing.device).scatter_(
            1, best, value=False
        )
        return grouped.masked_fill(outside[..., None], -torch.inf).view_as(competing)


def load_experts(reader: WeightReader, count: int, hidden: int, intermediate: int) -> Experts:
    """This rank's of `count` experts as checkpoints name them: `experts.0.gate_proj`, ..."""
    held = held_experts(reader.share, count)
    for expert in range(count):
        for name in () if expert in held else ("gate", "up", "down"):
            reader.leave(f"experts.{expert}.{name}_proj")

    def gate_up(expert: int) -> PackedLinear | QuantizedLinear:
        parts = [Part(name=f"experts.{expert}.{name}_proj", rows=intermediate) for name in ("gate", "up")]
        return reader.linear(parts, hidden)

    def down(expert: int) -> PackedLinear | QuantizedLinear:
        return reader.linear([Part(name=f"experts.{expert}.down_proj", rows=hidden)], intermediate)

    linears = ExpertLinears(gate_up=map(gate_up, held), down=map(down, held), hidden=hidden, intermediate=intermediate)
    return place_experts(reader.placement, held, linears)
