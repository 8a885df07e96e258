"""The way of rows to experts and back, against loops; stacks in Triton's interpreter against experts one by one."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.silu_and_mul import silu_and_mul
from draftwood_verifier.model.experts import (
    ExpertLinears,
    Experts,
    StackedExperts,
    combine,
    dispatch,
    dispatch_on_device,
    place_experts,
)
from draftwood_verifier.model.moe import MixtureOfExperts, Router, SigmoidRouter, SoftmaxRouter
from tests.unit.model.stacking import Stacking

ROWS, EXPERTS, CHOICES, HIDDEN, INTERMEDIATE = 11, 12, 3, 40, 24
RANGES = [range(EXPERTS), range(0, 5), range(5, 12), range(4, 5)]


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def chosen() -> torch.Tensor:
    """Distinct experts a row; expert 4 is nobody's."""
    scores = torch.rand(ROWS, EXPERTS)
    scores[:, 4] = -1
    return scores.topk(CHOICES).indices


def pairs_by_expert(experts: torch.Tensor, held: range) -> list[list[int]]:
    return [
        [row * CHOICES + place for row in range(ROWS) for place in range(CHOICES) if experts[row, place] == expert]
        for expert in held
    ]


@pytest.mark.parametrize("held", RANGES)
def test_pairs_of_the_held_experts_by_expert_and_row(held: range) -> None:
    experts = chosen()
    sent = dispatch(experts, held)
    parts = [sent.pairs[a:b].tolist() for a, b in zip(sent.offsets[:-1], sent.offsets[1:], strict=True)]
    assert parts == pairs_by_expert(experts, held)


def test_shares_of_experts_add_up_to_the_whole() -> None:
    experts, weights = chosen(), torch.rand(ROWS, CHOICES)
    outputs = torch.randn(ROWS * CHOICES, 7)
    expected = (outputs.view(ROWS, CHOICES, 7) * weights[..., None]).sum(1)
    total = torch.zeros(ROWS, 7)
    for held in (range(0, 5), range(5, 6), range(6, EXPERTS)):
        sent = dispatch(experts, held)
        total += combine(outputs[sent.pairs], weights, sent)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("held", RANGES)
def test_on_a_device_all_pairs_stay_and_those_of_others_are_behind(held: range) -> None:
    experts = chosen()
    sent = dispatch_on_device(experts, held)
    offsets = sent.offsets.tolist()
    parts = [sent.pairs[a:b].tolist() for a, b in pairwise(offsets)]
    assert sent.offsets.dtype == torch.int32
    assert parts == pairs_by_expert(experts, held)
    assert sent.pairs[sent.places].tolist() == list(range(ROWS * CHOICES))


def made(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gate_up [X, 2 * I, E], down [X, E, I] and biases of gate_up [X, 2 * I], of values that bfloat16 has."""
    gate_up, down = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN), torch.randn(EXPERTS, HIDDEN, INTERMEDIATE)
    tensors = gate_up / HIDDEN**0.5, down / INTERMEDIATE**0.5, torch.randn(EXPERTS, 2 * INTERMEDIATE)
    return tuple(tensor.bfloat16().to(dtype) for tensor in tensors)  # type: ignore[return-value]


def experts_of(placement: Placement, held: range, tensors: tuple[torch.Tensor, ...]) -> Experts:
    gate_up, down, biases = (placement.place(tensor) for tensor in tensors)
    linears = ExpertLinears(
        gate_up=(PackedLinear(gate_up[expert], biases[expert]) for expert in held),
        down=(PackedLinear(down[expert]) for expert in held),
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        gated=lambda rows: silu_and_mul(rows).clamp(max=5),
    )
    return place_experts(placement, held, linears)


@pytest.mark.parametrize("held", RANGES)
@pytest.mark.parametrize("everybody_to_one", [False, True])
def test_stacks_give_what_experts_one_by_one_give(held: range, everybody_to_one: bool) -> None:
    tensors, weights = made(torch.float32), torch.rand(ROWS, CHOICES)
    normed = torch.randn(ROWS, HIDDEN).bfloat16()
    experts = torch.full((ROWS, CHOICES), 7) if everybody_to_one else chosen()
    expected = experts_of(CPU, held, tensors)(normed.float(), weights, experts)
    stacked = experts_of(Stacking(device=torch.device("cpu"), dtype=torch.bfloat16), held, tensors)
    assert isinstance(stacked, StackedExperts)
    out = stacked(normed, weights, experts)
    assert out.dtype == torch.bfloat16
    # Rounded to eight bits three times: gate_up, gated and the sum.
    torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)


SOFTMAX = SoftmaxRouter(PackedLinear(torch.zeros(EXPERTS, HIDDEN, device="meta")), CHOICES, normalize=True)
SIGMOID = SigmoidRouter(
    gate=PackedLinear(torch.zeros(EXPERTS, HIDDEN, device="meta")),
    bias=torch.zeros(EXPERTS, device="meta"),
    experts_a_row=CHOICES,
    groups=4,
    groups_a_row=2,
    normalize=True,
    scale=1.0,
)


@pytest.mark.parametrize("router", [SOFTMAX, SIGMOID], ids=["softmax", "sigmoid"])
def test_nothing_needs_to_know_a_number(router: Router) -> None:
    """On the device `meta` there are none: what would wait for a GPU raises."""

    def linear(outputs: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        return lambda rows, _offsets: rows.new_empty(len(rows), outputs)

    experts = StackedExperts(range(2, 9), linear(2 * INTERMEDIATE), linear(HIDDEN), silu_and_mul)
    mixture = MixtureOfExperts(router, experts, shared=torch.zeros_like)
    assert mixture(torch.zeros(ROWS, HIDDEN, device="meta")).shape == (ROWS, HIDDEN)
