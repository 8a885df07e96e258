"""The weighted sum over experts against a loop, its kernel in Triton's interpreter too."""

from collections.abc import Callable

import pytest
import torch

from draftwood_kernels.combine_experts import combine_experts, kernel

# float32 sums of eight terms, rounded once.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
Op = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make(
    rows: int, choices: int, hidden: int, held: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs of `held` pairs anywhere, NaN behind them."""
    pairs = rows * choices
    outputs = torch.randn(pairs, hidden).to(dtype)
    outputs[held:] = torch.nan
    return outputs, torch.rand(rows, choices), torch.randperm(pairs), torch.tensor([held], dtype=torch.int32)


@pytest.mark.parametrize("op", [combine_experts, kernel.combine_experts], ids=["reference", "kernel"])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(
    ("rows", "choices", "hidden", "held"),
    [(7, 3, 100, 13), (1, 8, 1025, 8), (3, 1, 63, 0), (0, 4, 16, 0)],
)
def test_against_a_loop(op: Op, rows: int, choices: int, hidden: int, held: int, dtype: torch.dtype) -> None:
    outputs, weights, places, end = make(rows, choices, hidden, held, dtype)
    expected = torch.zeros(rows, hidden, dtype=torch.float64)
    for pair, place in enumerate(places.tolist()):
        if place < held:
            expected[pair // choices] += float(weights.view(-1)[pair]) * outputs[place].double()
    out = op(outputs, weights, places, end)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    outputs, weights, places, end = make(9, 4, 130, 36, torch.bfloat16)
    together = kernel.combine_experts(outputs, weights, places, end)
    alone = kernel.combine_experts(outputs, weights[5:6], places[20:24], end)
    assert torch.equal(alone[0], together[5])
