"""The way of rows to the experts that they were sent to, and back.

In between a row stands once for each of its experts, sorted by expert: that is where experts can be spread over ranks,
each of which computes what it holds and contributes to the sum. On a CPU the host knows where an expert's rows begin
and runs the experts that have some. On a GPU the device alone knows: all sizes follow from the number of rows, and
pairs whose expert another rank holds are sorted behind all others, where nobody computes them.

Shapes: N rows, E hidden, I intermediate, K experts a row, X held experts, M pairs of a row and one of its experts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from draftwood_kernels.combine_experts import combine_experts
from draftwood_kernels.grouped_gemm import GroupedLinear, StackedLinear
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.placement import Placement
from draftwood_kernels.quantized_linear import QuantizedLinear
from draftwood_kernels.silu_and_mul import silu_and_mul

# [M, 2 * I], gates first -> [M, I].
Gated = Callable[[torch.Tensor], torch.Tensor]


class Experts(Protocol):
    def __call__(self, normed: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """normed [N, E], weights float32 [N, K], chosen int64 [N, K] -> what the held experts contribute [N, E]."""


@dataclass(frozen=True, kw_only=True)
class ExpertLinears:
    """gate_up [E -> 2 * I] and down [I -> E] of each held expert, made as they are drawn: all gate_up first."""

    gate_up: Iterable[PackedLinear | QuantizedLinear]
    down: Iterable[PackedLinear | QuantizedLinear]
    hidden: int
    intermediate: int
    gated: Gated = silu_and_mul


def place_experts(placement: Placement, held: range, linears: ExpertLinears) -> Experts:
    """The experts `held` of a layer where the model is; alone, a process holds all of them."""
    if placement.is_gpu:
        gate_up, down = StackedLinear(linears.gate_up, len(held)), StackedLinear(linears.down, len(held))
        return StackedExperts(held, gate_up, down, linears.gated)
    return PackedExperts(
        held,
        GroupedLinear(linears.gate_up, 2 * linears.intermediate),
        GroupedLinear(linears.down, linears.hidden),
        linears.gated,
    )


class PackedExperts:
    def __init__(self, held: range, gate_up: GroupedLinear, down: GroupedLinear, gated: Gated) -> None:
        self._held = held
        self._gate_up = gate_up
        self._down = down
        self._gated = gated

    def __call__(self, normed: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        sent = dispatch(chosen, self._held)
        rows = normed.index_select(0, sent.pairs // chosen.shape[1])
        outputs = self._down(self._gated(self._gate_up(rows, sent.offsets)), sent.offsets)
        return combine(outputs, weights, sent)


@dataclass(frozen=True)
class Dispatch:
    """pairs int64 [M]: row * K + choice, sorted by expert; offsets: where each held expert's pairs begin and end."""

    pairs: torch.Tensor
    offsets: list[int]


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


class StackedExperts:
    """Only operations of sizes that follow from normed's, so that a graph can have them."""

    def __init__(self, held: range, gate_up: StackedLinear, down: StackedLinear, gated: Gated) -> None:
        self._held = held
        self._gate_up = gate_up
        self._down = down
        self._gated = gated

    def __call__(self, normed: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        sent = dispatch_on_device(chosen, self._held)
        rows = normed.index_select(0, sent.pairs // chosen.shape[1])
        outputs = self._down(self._gated(self._gate_up(rows, sent.offsets)), sent.offsets)
        return combine_experts(outputs, weights, sent.places, sent.offsets[-1:])


@dataclass(frozen=True)
class DeviceDispatch:
    """All pairs: M = N * K, numbered row * K + choice.

    pairs int64 [M]: sorted by held expert, then by row; those of other ranks behind all. places int64 [M]: where a pair
    is among them. offsets int32 [X + 1]: where each held expert's pairs begin and end.
    """

    pairs: torch.Tensor
    places: torch.Tensor
    offsets: torch.Tensor


def dispatch_on_device(chosen: torch.Tensor, held: range) -> DeviceDispatch:
    """chosen int64 [N, K]."""
    experts = chosen.flatten() - held.start
    experts.masked_fill_((experts < 0) | (experts >= len(held)), len(held))
    ordered, pairs = experts.sort(stable=True)
    steps = torch.arange(max(len(pairs), len(held) + 1), device=chosen.device)
    # A count by bins would wait for the host, which has to hear how many bins there are.
    offsets = torch.searchsorted(ordered, steps[: len(held) + 1], out_int32=True)
    return DeviceDispatch(pairs, torch.empty_like(pairs).scatter_(0, pairs, steps[: len(pairs)]), offsets)
