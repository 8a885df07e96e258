"""Routing and the way of rows to experts and back, against loops."""

import pytest
import torch

from draftwood_verifier.model.moe import SigmoidRouter, combine, dispatch

ROWS, EXPERTS, CHOICES = 11, 12, 3


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def chosen() -> torch.Tensor:
    """Distinct experts a row; expert 4 is nobody's."""
    scores = torch.rand(ROWS, EXPERTS)
    scores[:, 4] = -1
    return scores.topk(CHOICES).indices


@pytest.mark.parametrize("held", [range(EXPERTS), range(0, 5), range(5, 12), range(4, 5)])
def test_pairs_of_the_held_experts_by_expert_and_row(held: range) -> None:
    experts = chosen()
    sent = dispatch(experts, held)
    expected = [
        [row * CHOICES + place for row in range(ROWS) for place in range(CHOICES) if experts[row, place] == expert]
        for expert in held
    ]
    assert [sent.pairs[a:b].tolist() for a, b in zip(sent.offsets[:-1], sent.offsets[1:], strict=True)] == expected


def test_shares_of_experts_add_up_to_the_whole() -> None:
    experts, weights = chosen(), torch.rand(ROWS, CHOICES)
    outputs = torch.randn(ROWS * CHOICES, 7)
    expected = (outputs.view(ROWS, CHOICES, 7) * weights[..., None]).sum(1)
    total = torch.zeros(ROWS, 7)
    for held in (range(0, 5), range(5, 6), range(6, EXPERTS)):
        sent = dispatch(experts, held)
        total += combine(outputs[sent.pairs], weights, sent)
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_groups_limit_who_competes(normalize: bool) -> None:
    gate, bias, normed = torch.randn(EXPERTS, 16), torch.randn(EXPERTS), torch.randn(ROWS, 16)
    router = SigmoidRouter(
        gate=gate, bias=bias, experts_a_row=CHOICES, groups=4, groups_a_row=2, normalize=normalize, scale=2.5
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
