"""The fused head norm, rotation and store in Triton's interpreter against the reference in float32."""

import pytest
import torch

from draftwood_kernels.store_kv import kernel, store_kv

EPS = 1e-6
# Both compute in float32 and round once; where two products of a rotation cancel, the error is that of the products.
TOLERANCE = {torch.float32: (1e-5, 5e-6), torch.float16: (2e-3, 5e-6), torch.bfloat16: (1.6e-2, 5e-6)}


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def phases_of(rows: int, head_dim: int) -> torch.Tensor:
    return torch.polar(torch.ones(rows, 1, head_dim // 2), torch.rand(rows, 1, head_dim // 2) * 6.3)


def check(fused: torch.Tensor, kv_heads: int, *, normed: bool) -> None:
    rows, all_heads, head_dim = fused.shape
    head_norm = torch.randn(all_heads - kv_heads, head_dim).to(fused.dtype) if normed else None
    phases, before = phases_of(rows, head_dim), fused.clone()
    fresh = torch.full((rows, 2 * kv_heads, head_dim), torch.nan, dtype=fused.dtype)
    queries = kernel.store_kv(fused, head_norm, EPS, phases, fresh)
    expected_fresh = torch.empty(fresh.shape)
    wide_norm = None if head_norm is None else head_norm.float()
    expected = store_kv(fused.float(), wide_norm, EPS, phases, expected_fresh)
    rtol, atol = TOLERANCE[fused.dtype]
    torch.testing.assert_close(queries, expected.to(fused.dtype), rtol=rtol, atol=atol)
    torch.testing.assert_close(fresh, expected_fresh.to(fused.dtype), rtol=rtol, atol=atol)
    assert queries.is_contiguous()
    assert torch.equal(fresh[:, kv_heads:], fused[:, all_heads - kv_heads :])  # values are moved, not computed
    assert torch.equal(fused, before)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (8, 2), (7, 1), (16, 2)])
def test_heads(heads: int, kv_heads: int, normed: bool, dtype: torch.dtype) -> None:
    check(torch.randn(5, heads + 2 * kv_heads, 64).to(dtype), kv_heads, normed=normed)


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("rows", [1, 63])
def test_head_sizes_and_odd_row_counts(rows: int, head_dim: int) -> None:
    check(torch.randn(rows, 8, head_dim), 2, normed=True)


def test_rows_of_a_wider_product() -> None:
    check(torch.randn(6, 10, 64)[:, :8], 2, normed=True)


def test_no_rows() -> None:
    fresh = torch.empty(0, 4, 64)
    assert kernel.store_kv(torch.empty(0, 8, 64), None, EPS, phases_of(0, 64), fresh).shape == (0, 4, 64)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    fused, norm, phases = torch.randn(256, 8, 64), torch.randn(6, 64), phases_of(256, 64)
    whole = torch.empty(256, 4, 64)
    queries = kernel.store_kv(fused, norm, EPS, phases, whole)
    for rows in (1, 7, 16, 64):
        part = torch.empty(rows, 4, 64)
        assert torch.equal(kernel.store_kv(fused[:rows], norm, EPS, phases[:rows], part), queries[:rows])
        assert torch.equal(part, whole[:rows])


def test_places_that_do_not_fit_are_named() -> None:
    fused, phases = torch.randn(3, 8, 64), phases_of(3, 64)
    with pytest.raises(ValueError, match=r"^fresh:"):
        kernel.store_kv(fused, None, EPS, phases, torch.empty(2, 4, 64))
    with pytest.raises(ValueError, match=r"^fresh:"):
        kernel.store_kv(fused, None, EPS, phases, torch.empty(3, 4, 64, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"^fused:"):
        kernel.store_kv(fused.transpose(1, 2).contiguous().transpose(1, 2), None, EPS, phases, torch.empty(3, 4, 64))
