"""Noise on rows of logits: kernel, interpreted, and reference against what the host does for the same wishes."""

import numpy as np
import pytest
import torch

from draftwood_kernels.build_tree import TreeWish, perturb
from draftwood_kernels.perturb import NoiseRows, kernel, perturb_rows
from draftwood_kernels.sample import gumbel

# (temperature, seed, position) of each row.
ROWS = [
    (0.0, 7, 3),
    (0.7, 0, 0),
    (0.7, None, 12),
    (1.3, 2**64 - 1, 2**31),
    (0.1, 2**63, 5),
    (0.7, 0, 1),
    (0.0, None, 1),
]


def noise_rows() -> NoiseRows:
    temperatures, seeds, positions = zip(*ROWS, strict=True)
    bits = np.array([seed or 0 for seed in seeds], np.uint64).view(np.int64)
    return NoiseRows(
        temperatures=torch.tensor(temperatures),
        seeds=torch.from_numpy(bits),
        positions=torch.tensor(positions),
        is_seeded=torch.tensor([seed is not None for seed in seeds], dtype=torch.int32),
    )


def on_host(logits: torch.Tensor) -> torch.Tensor:
    """Every row as the wish of a session of its own."""
    rows = logits.float().clone()
    wishes = [
        TreeWish(depths=1, position=position, is_chain=True, node_limit=1, temperature=temperature, seed=seed)
        for temperature, seed, position in ROWS
    ]
    perturb(rows, wishes, lambda index, position: gumbel(wishes[index].seed or 0, position, rows.shape[1]))
    return rows


@pytest.mark.parametrize("vocab", [1, 97, 1024, 1025, 2600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_the_hosts(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(len(ROWS), vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    before, expected = logits.clone(), on_host(logits)
    assert torch.equal(perturb_rows(logits, noise_rows()), expected)
    perturbed = kernel.perturb_rows(logits, noise_rows())
    # A float64 logarithm, rounded to float32, may differ in the last bit.
    torch.testing.assert_close(perturbed, expected, rtol=3e-7, atol=3e-7)
    assert torch.equal(perturbed[0], logits[0].float())
    assert torch.equal(logits, before)


def test_rows_apart_in_memory_and_none_at_all() -> None:
    wide = torch.randn(len(ROWS), 200, generator=torch.Generator().manual_seed(0))
    rows = noise_rows()
    assert torch.equal(kernel.perturb_rows(wide[:, :97], rows), kernel.perturb_rows(wide[:, :97].contiguous(), rows))
    assert kernel.perturb_rows(wide[:0], rows).shape == (0, 200)
    with pytest.raises(ValueError, match=r"^logits: a row has to be contiguous"):
        kernel.perturb_rows(wide.T[: len(ROWS)], rows)
