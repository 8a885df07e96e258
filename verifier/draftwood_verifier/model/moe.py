"""Mixtures of experts: a router sends every row to a few of a layer's MLPs, and their weighted outputs are summed.

Between `dispatch` and `combine` a row stands once for each expert it was sent to, sorted by expert: that is where
experts can be spread over ranks, each of which computes what it holds and contributes to the sum.

Shapes: N rows, E hidden, K experts a row, X experts of the layer, M pairs of a row and one of its experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from draftwood_kernels.grouped_gemm import GroupedLinear
from draftwood_kernels.silu_and_mul import silu_and_mul
from draftwood_verifier.model.layer import Mlp
from draftwood_verifier.model.weights import Part, WeightReader
from draftwood_verifier.parallel.experts import held_experts


class Router(Protocol):
    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """normed [N, E] -> weights float32 [N, K] and experts int64 [N, K]."""


@dataclass(frozen=True)
class Dispatch:
    """pairs int64 [M]: row * K + choice, sorted by expert; offsets: where each held expert's pairs begin and end."""

    pairs: torch.Tensor
    offsets: list[int]


class MixtureOfExperts:
    """Gives what the held experts and this rank's part of the shared one contribute to the output."""

    def __init__(self, router: Router, experts: "Experts", shared: Mlp | None = None) -> None:
        """`shared` sees every row."""
        self._router = router
        self._experts = experts
        self._shared = shared

    def __call__(self, normed: torch.Tensor) -> torch.Tensor:
        out = self._experts(normed, *self._router(normed))
        return out if self._shared is None else out.add_(self._shared(normed))


class Experts:
    """The experts `held` of a layer; alone, a process holds all of them."""

    def __init__(
        self,
        held: range,
        gate_up: GroupedLinear,
        down: GroupedLinear,
        gated: Callable[[torch.Tensor], torch.Tensor] = silu_and_mul,
    ) -> None:
        """gated: [M, 2 * I], gates first -> [M, I]."""
        self._held = held
        self._gate_up = gate_up
        self._down = down
        self._gated = gated

    def __call__(self, normed: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What the held experts contribute to every row [N, E]."""
        sent = dispatch(chosen, self._held)
        rows = normed.index_select(0, sent.pairs // chosen.shape[1])
        outputs = self._down(self._gated(self._gate_up(rows, sent.offsets)), sent.offsets)
        return combine(outputs, weights, sent)


def dispatch(chosen: torch.Tensor, held: range) -> Dispatch:
    """chosen int64 [N, K] -> the pairs whose expert is held, in the order of experts, then of rows."""
    experts = chosen.flatten()
    ends = torch.bincount(experts, minlength=held.stop).cumsum(0)[: held.stop].tolist()
    offsets = [0, *ends][held.start :]
    pairs = experts.argsort(stable=True)[offsets[0] : offsets[-1]]
    return Dispatch(pairs, [offset - offsets[0] for offset in offsets])


def combine(outputs: torch.Tensor, weights: torch.Tensor, sent: Dispatch) -> torch.Tensor:
    """outputs [M, E] of the sent pairs, weights [N, K] -> their weighted sums [N, E]."""
    weighted = outputs * weights.flatten().index_select(0, sent.pairs)[:, None]
    out = weighted.new_zeros(len(weights), outputs.shape[1])
    return out.index_add_(0, sent.pairs // weights.shape[1], weighted)


class SoftmaxRouter:
    """The K most probable experts, weighted by their probabilities, which `normalize` makes sum to one."""

    def __init__(
        self, gate: torch.Tensor, experts_a_row: int, *, normalize: bool, bias: torch.Tensor | None = None
    ) -> None:
        """gate [X, E], bias [X]."""
        self._gate = gate
        self._bias = bias
        self._experts_a_row = experts_a_row
        self._normalize = normalize

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(torch.nn.functional.linear(normed, self._gate, self._bias), dim=-1)
        weights, experts = probabilities.topk(self._experts_a_row, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True) if self._normalize else weights, experts


@dataclass(frozen=True, kw_only=True)
class SigmoidRouter:
    """Experts are chosen by their score plus a bias and weighted by the score alone.

    Of `groups` equal groups of experts only the `groups_a_row` with the highest sums of their two best compete.
    """

    gate: torch.Tensor  # [X, E]
    bias: torch.Tensor  # [X]
    experts_a_row: int
    groups: int
    groups_a_row: int
    normalize: bool
    scale: float

    def __call__(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.nn.functional.linear(normed, self.gate).sigmoid_()
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

    def gate_up(expert: int) -> list[Part]:
        return [Part(name=f"experts.{expert}.{name}_proj", rows=intermediate) for name in ("gate", "up")]

    def down(expert: int) -> list[Part]:
        return [Part(name=f"experts.{expert}.down_proj", rows=hidden)]

    return Experts(
        held,
        GroupedLinear((reader.linear(gate_up(expert), hidden) for expert in held), 2 * intermediate),
        GroupedLinear((reader.linear(down(expert), intermediate) for expert in held), hidden),
    )
