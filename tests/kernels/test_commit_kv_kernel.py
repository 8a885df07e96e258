"""The commit's kernel in Triton's interpreter: data movement, so exact; whoever is not meant stays NaN."""

import pytest
import torch

from draftwood_kernels.commit_kv import commit_kv, kernel, reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LAYERS, HEADS = 3, 4


def move(rows: int, head_dim: int, dtype: torch.dtype, count: int | None) -> None:
    generator = torch.Generator().manual_seed(rows * 1000 + head_dim)
    scratch = torch.randn(LAYERS, rows + 5, HEADS, head_dim, generator=generator).to(dtype)
    pages = torch.full((LAYERS, rows + 40, HEADS, head_dim), torch.nan, dtype=dtype)
    expected = pages.clone()
    sources = torch.randperm(rows + 5, generator=generator)[:rows]
    slots = torch.randperm(rows + 40, generator=generator)[:rows]
    reference.commit_kv(scratch, expected, sources[:count], slots[:count])
    if count is not None:
        # Rows beyond the count name no place that exists.
        sources[count:], slots[count:] = 1 << 40, -(1 << 40)
    device_count = None if count is None else torch.tensor([count], dtype=torch.int32)
    kernel.commit_kv(scratch[:, : rows + 5], pages, sources, slots, device_count)
    torch.testing.assert_close(pages, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 63, 100, 257])
def test_rows(rows: int, dtype: torch.dtype) -> None:
    move(rows, 64, dtype, None)


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256, 300])
def test_head_sizes(head_dim: int) -> None:
    move(7, head_dim, torch.bfloat16, None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 62, 63])
def test_rows_beyond_the_count_are_skipped(count: int, dtype: torch.dtype) -> None:
    move(63, 64, dtype, count)


def test_scratch_cut_out_of_a_larger_one() -> None:
    scratch, pages = torch.randn(LAYERS, 20, HEADS, 8), torch.zeros(LAYERS, 20, HEADS, 8)
    kernel.commit_kv(scratch[:, 5:11], pages, torch.tensor([0, 5]), torch.tensor([19, 0]))
    assert torch.equal(pages[:, [19, 0]], scratch[:, [5, 10]])
    assert not pages[:, 1:19].any()


def test_the_cpu_heeds_the_count() -> None:
    scratch, pages = torch.randn(LAYERS, 4, HEADS, 8), torch.zeros(LAYERS, 9, HEADS, 8)
    commit_kv(scratch, pages, torch.tensor([3, 2]), torch.tensor([8, 7]), torch.tensor([1], dtype=torch.int32))
    assert torch.equal(pages[:, 8], scratch[:, 3])
    assert not pages[:, :8].any()


def test_what_a_flat_copy_cannot_move_is_refused() -> None:
    scratch, pages, index = torch.randn(2, 4, HEADS, 8), torch.zeros(2, 4, HEADS, 8), torch.tensor([0])
    with pytest.raises(ValueError, match=r"^scratch: .*does not fit"):
        kernel.commit_kv(scratch.half(), pages, index, index)
    with pytest.raises(ValueError, match=r"^pages: heads of a row must lie dense"):
        kernel.commit_kv(scratch, pages.mT.contiguous().mT, index, index)
