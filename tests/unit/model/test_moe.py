"""Routing, against loops."""

import pytest
import torch

from draftwood_kernels.linear import PackedLinear
from draftwood_verifier.model.moe import SigmoidRouter, SoftmaxRouter

ROWS, EXPERTS, CHOICES = 11, 12, 3


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("normalize", [True, False])
def test_groups_limit_who_competes(normalize: bool) -> None:
    gate, bias, normed = torch.randn(EXPERTS, 16), torch.randn(EXPERTS), torch.randn(ROWS, 16)
    router = SigmoidRouter(
        gate=PackedLinear(gate),
        bias=bias,
        experts_a_row=CHOICES,
        groups=4,
        groups_a_row=2,
        normalize=normalize,
        scale=2.5,
    )
    weights, experts = router(normed)
    limited = 0
    for row in range(ROWS):
        scores = torch.sigmoid(gate @ normed[row])
        competing = (scores + bias).view(4, 3)
        best = sorted(range(4), key=lambda group: -float(competing[group].sort().values[1:].sum()))[:2]
        candidates = [expert for expert in range(EXPERTS) if expert // 3 in best]
        expected = sorted(candidates, key=lambda expert: -float(scores[expert] + bias[expert]))[:CHOICES]
        limited += set(expected) != set((scores + bias).topk(CHOICES).indices.tolist())
        assert set(experts[row].tolist()) == set(expected)
        kept = scores[experts[row]]
        torch.testing.assert_close(weights[row], 2.5 * (kept / kept.sum() if normalize else kept))
    assert limited, "no row where the groups make a difference"


def test_softmax_is_float32_from_the_logits_on() -> None:
    gate, normed = torch.randn(EXPERTS, 16).bfloat16(), torch.randn(ROWS, 16).bfloat16()
    weights, experts = SoftmaxRouter(PackedLinear(gate), CHOICES, normalize=False)(normed)
    assert weights.dtype == torch.float32
    expected = torch.softmax((normed @ gate.T).float(), dim=-1)
    torch.testing.assert_close(weights, expected.gather(1, experts))
    torch.testing.assert_close(weights, expected.topk(CHOICES).values)


def test_a_bias_that_bfloat16_would_round_decides() -> None:
    """Scores differ by 0.02 beside a bias of 14, whose neighbours in bfloat16 are 0.06 away."""
    normed = torch.zeros(1, 16, dtype=torch.bfloat16)
    bias = 14 + torch.tensor([0.0, 0.02, 0.01, 0.03])
    router = SigmoidRouter(
        gate=PackedLinear(torch.randn(4, 16)),
        bias=bias,
        experts_a_row=2,
        groups=1,
        groups_a_row=1,
        normalize=True,
        scale=1.0,
    )
    weights, experts = router(normed)
    assert experts.tolist() == [[3, 1]]
    torch.testing.assert_close(weights, torch.full((1, 2), 0.5))


def test_sigmoid_logits_are_float32() -> None:
    gate, normed = torch.randn(EXPERTS, 16), torch.randn(ROWS, 16).bfloat16()
    router = SigmoidRouter(
        gate=PackedLinear(gate),
        bias=torch.zeros(EXPERTS),
        experts_a_row=1,
        groups=1,
        groups_a_row=1,
        normalize=False,
        scale=1.0,
    )
    torch.testing.assert_close(router(normed)[0][:, 0], torch.sigmoid(normed.float() @ gate.T).amax(dim=1))
