"""Thresholds found bit by bit, in Triton's interpreter, against a stable sort of all weights."""

import numpy as np
import pytest
import torch

from draftwood_kernels.keep_bounds import KeepBounds, kernel, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def check(
    logits: torch.Tensor, temperature: list[float], top_k: list[int], top_p: list[float], min_p: list[float]
) -> KeepBounds:
    """Equal, not close: the numbers of the draws here are far from the last bit of a sum."""
    rows = (
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
    )
    ours, expected = kernel.keep_bounds(logits, *rows), reference.keep_bounds(logits, *rows)
    assert torch.equal(ours.sure, expected.sure)
    assert torch.equal(ours.tied, expected.tied)
    assert torch.equal(ours.last, expected.last)
    assert (ours.sure.dtype, ours.last.dtype) == (expected.sure.dtype, expected.last.dtype)
    return ours


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 7, 100, 2049])
def test_random_rows(vocab: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(vocab)
    rows = 6 if vocab < 1000 else 3
    spread = rng.choice([0.01, 1, 5, 1000], (rows, 1))
    logits = torch.from_numpy((rng.normal(size=(rows, vocab)) * spread).astype(np.float32)).to(dtype)
    logits[::2] = logits[::2].round()  # many ties
    check(
        logits,
        rng.choice([0.0, 0.3, 1.0, 2.0], rows).tolist(),
        rng.choice([0, 1, 3, 40, 5000], rows).tolist(),
        rng.choice([1.0, 0.93, 0.51, 1e-6], rows).tolist(),
        rng.choice([0.0, 0.05, 0.9, 1.0], rows).tolist(),
    )


def test_each_rule_alone_and_all_together() -> None:
    logits = 3 * torch.randn(6, 4500, generator=torch.Generator().manual_seed(1))
    ours = check(logits, [1.0] * 6, [0, 50, 0, 0, 50, 0], [1, 1, 0.9, 1, 0.9, 0.999], [0, 0, 0, 0.02, 0.02, 0.1])
    assert ours.last[0] == logits[0].argmin()
    assert ours.tied[1] == logits[1].sort(descending=True).values[49]


@pytest.mark.parametrize(
    ("row", "top_k"),
    [
        ([2, 2, 2, 2, 2], 3),
        ([1, 3, 2, 3, 2, 2], 4),
        ([1, 3, 2, 3, 2, 2], 2),
        ([1e-30, 0, 2e-30], 2),  # unequal logits of equal weight
        ([0, -0.0, -0.0, 0, -1], 3),
        ([-120, 0, -110], 2),
        ([-900, 0, -800, -900], 3),  # weights that underflow are equals too
        ([-740, 0, -740.5, -740.0001], 3),  # weights below the normal numbers of float64
        ([0, -np.inf, 1, -np.inf], 3),
        ([-5, -3, -4, -3.5], 2),
    ],
)
def test_ties_at_the_threshold(row: list[float], top_k: int) -> None:
    logits = torch.tensor([row, row, row], dtype=torch.float32)
    check(logits, [1.0] * 3, [top_k, top_k, 0], [1.0, 0.7, 0.7], [0.0, 0.0, 0.3])


def test_a_nucleus_ends_inside_its_class() -> None:
    """Ten equals: 0.35 of the mass is reached by the fourth; of eight, half by the fourth."""
    assert check(torch.zeros(1, 10), [1.0], [0], [0.35], [0.0]).last.tolist() == [3]
    assert check(torch.zeros(1, 10), [1.0], [8], [0.5], [0.0]).last.tolist() == [3]


def test_what_is_no_number_is_below_everything() -> None:
    logits = torch.tensor([[torch.nan, 1.0, 2.0, torch.nan, 0.5]])
    rows = torch.ones(1), torch.tensor([2]), torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    ours = kernel.keep_bounds(logits, *rows)
    assert (ours.sure.item(), ours.tied.item(), ours.last.item()) == (2.0, 1.0, 1)


def test_rows_of_a_wider_tensor_and_no_rows() -> None:
    wide = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    check(wide[:, 50:250], [1.0] * 3, [7, 0, 0], [1.0, 0.5, 1.0], [0.0, 0.0, 0.1])
    assert check(torch.empty(0, 5), [], [], [], []).last.shape == (0,)
    with pytest.raises(ValueError, match=r"^logits: a row has to be contiguous"):
        check(torch.zeros(5, 3).T, [1.0] * 3, [0] * 3, [1.0] * 3, [0.0] * 3)
