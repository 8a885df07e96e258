"""Sinks and windows in the Triton kernel, interpreted, against the torch op and a softmax over each row's own keys."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftwood_kernels.sink_attention import sink_attention
from draftwood_kernels.sink_attention.kernel import sink_attention_triton
from tests.kernels.attention_steps import (
    TOLERANCES,
    Step,
    chain,
    gathered_layout,
    layout_of,
    make_step,
    paged,
    paths_of,
    random_tree,
)


def attend(step: Step, sinks: torch.Tensor, window: int | None, split_keys: int = 16) -> torch.Tensor:
    pages, tables = paged(step)
    queries, fresh = torch.cat(step.queries), torch.cat(step.fresh)
    layout = layout_of(step, tables)
    return sink_attention_triton(queries, fresh, pages, layout, sinks=sinks, window=window, split_keys=split_keys)


def close(step: Step, out: torch.Tensor, sinks: torch.Tensor, window: int | None) -> None:
    tolerance, queries = TOLERANCES[out.dtype], torch.cat(step.queries).double()
    expected = torch.empty(out.shape, dtype=torch.float64)
    for row, path in enumerate(paths_of(step)):
        near = path[-window:] if window else path
        keys, values = near.transpose(0, 1).chunk(2)
        grouped = queries[row].view(len(keys), -1, queries.shape[2])
        scores = (grouped @ keys.mT / queries.shape[2] ** 0.5).flatten(0, 1)
        weights = torch.softmax(torch.cat([scores, sinks.double()[:, None]], dim=1), dim=1)[:, :-1]
        expected[row] = (weights.view(len(keys), -1, len(near)) @ values).flatten(0, 1)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def heads_of(step: Step) -> int:
    return step.queries[0].shape[1]


# Rows of the deep tree see themselves, then a part of their path, of 21 keys before it, of several splits, everything.
@pytest.mark.parametrize("window", [1, 3, 12, 20, 60, None])
def test_windows_cut_the_tree_or_the_prefix(window: int | None) -> None:
    deep = np.array([-1, 0, 1, 2, 2, 4, 0, 5, 7, 8], np.int32)
    step = make_step([deep, chain(1), chain(9), chain(0)], [21, 37, 6, 5], kv_heads=1, group=8)
    sinks = torch.randn(8, generator=torch.Generator().manual_seed(0))
    close(step, attend(step, sinks, window), sinks, window)


@pytest.mark.parametrize("seed", range(3))
def test_random_ragged_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_tree(rng, int(size)) for size in rng.integers(1, 30, 3)]
    step = make_step(parents, rng.integers(0, 50, 3).tolist(), kv_heads=2, group=int(rng.choice([1, 3, 8])))
    sinks, window = torch.from_numpy(rng.normal(size=heads_of(step))).float(), int(rng.choice([2, 7, 30]))
    close(step, attend(step, sinks, window), sinks, window)


@pytest.mark.parametrize("window", [None, 40])
def test_a_sink_weighs_once_however_many_splits_there_are(window: int | None) -> None:
    """From nothing over what all keys weigh together to nearly everything."""
    step = make_step([np.array([-1, 0, 0], np.int32), chain(1)], [50, 3], kv_heads=1, group=8)
    sinks = torch.tensor([-torch.inf, -1e4, -3.0, 0.0, 3.0, 6.0, 30.0, 1e4])
    out = attend(step, sinks, window)
    close(step, out, sinks, window)
    assert out[:, :6].abs().amax(2).min() > 1e-3
    assert not out[:, 7].any()


def test_rows_of_a_large_tree_see_their_near_ancestors_only() -> None:
    rng = np.random.default_rng(1)
    parents = np.array([-1, *(rng.integers(max(0, row - 3), row) for row in range(1, 257))], np.int32)
    step, sinks = make_step([parents], [9], kv_heads=1, group=1), torch.zeros(1)
    close(step, attend(step, sinks, 24), sinks, 24)


def test_a_long_chunk_is_not_split() -> None:
    step, sinks = make_step([chain(258), chain(1)], [40, 24], kv_heads=1, group=1), torch.ones(1)
    close(step, attend(step, sinks, 37), sinks, 37)


@pytest.mark.parametrize("split_keys", [16, 1024])
def test_what_no_row_sees_is_not_read(split_keys: int) -> None:
    """NaN would come through the product with the values, whatever its weight."""
    window, lengths = 20, [75, 45]
    step = make_step([np.array([-1, 0, 0, 1], np.int32), chain(1)], lengths, kv_heads=1, group=8)
    for prefix, length in zip(step.prefixes, lengths, strict=True):
        prefix[: length - window + 1] = torch.nan
    near = replace(step, prefixes=[prefix[-window + 1 :] for prefix in step.prefixes])
    sinks = torch.zeros(8)
    close(near, attend(step, sinks, window, split_keys), sinks, window)


def test_a_tile_of_a_chunk_reads_no_key_far_behind_it() -> None:
    """Its own first rows included: those of the first tile are not even numbers."""
    window, size = 30, 160
    step, sinks = make_step([chain(size)], [5], kv_heads=1, group=8), torch.zeros(8)
    expected = attend(step, sinks, window)
    step.prefixes[0][:] = torch.nan
    step.fresh[0][:4] = torch.nan
    out = attend(step, sinks, window)
    assert out[:4].isnan().all()
    assert torch.equal(out[64:], expected[64:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_numbers(dtype: torch.dtype) -> None:
    parents = [random_tree(np.random.default_rng(1), 19), chain(1), chain(6)]
    step = make_step(parents, [37, 20, 0], kv_heads=2, group=4, dtype=dtype)
    sinks = torch.linspace(-2, 4, 8).to(dtype)
    out = attend(step, sinks, 25)
    assert out.dtype == dtype
    close(step, out, sinks, 25)


@pytest.mark.parametrize("window", [None, 6])
def test_the_torch_op_gives_the_same(window: int | None) -> None:
    parents = [random_tree(np.random.default_rng(2), 20), chain(9), chain(1)]
    step, sinks = make_step(parents, [18, 8, 33], kv_heads=2, group=2), torch.linspace(-2, 2, 4)
    pages, tables = paged(step)
    layout = gathered_layout(step, tables)
    workspace = torch.full((layout.workspace_rows, *pages.shape[1:]), torch.nan)
    tensors = torch.cat(step.queries), torch.cat(step.fresh), pages
    expected = sink_attention(*tensors, workspace, layout, sinks=sinks, window=window)
    out = sink_attention(*tensors, None, layout_of(step, tables), sinks=sinks, window=window)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="needs a workspace"):
        sink_attention(*tensors, None, layout, sinks=sinks, window=window)


def test_a_row_has_the_same_bits_alone_and_in_a_batch_and_whatever_comes_behind_it() -> None:
    rng = np.random.default_rng(3)
    step = make_step([random_tree(rng, 33), chain(1), chain(20)], [45, 64, 7], kv_heads=1, group=4)
    sinks, window = torch.linspace(-1, 1, 4), 18
    together = attend(step, sinks, window).split([33, 1, 20])
    for segment, out in enumerate(together):
        assert torch.equal(attend(step.only(segment), sinks, window), out)
    tree = step.only(0)
    cut = replace(tree, parents=[tree.parents[0][:9]], queries=[tree.queries[0][:9]], fresh=[tree.fresh[0][:9]])
    assert torch.equal(attend(cut, sinks, window), together[0][:9])


def test_rows_of_nobody_are_zero() -> None:
    step, sinks = make_step([random_tree(np.random.default_rng(4), 5), chain(1)], [40, 3], kv_heads=1, group=8), 8
    pages, tables = paged(step)
    queries = torch.cat([*step.queries, torch.full((11, 8, 64), torch.nan)])
    fresh = torch.cat([*step.fresh, torch.full((11, 2, 64), torch.nan)])
    layout = layout_of(step, tables, nobody=11)
    out = sink_attention(queries, fresh, pages, None, layout, sinks=torch.ones(sinks), window=30)
    assert not out[6:].any()
    close(step, out[:6].view(6, 8, 64), torch.ones(8), 30)


def test_what_does_not_fit_is_refused() -> None:
    step = make_step([chain(2)], [3], kv_heads=1, group=4)
    with pytest.raises(AssertionError, match=r"sinks \[1\] of 4 heads"):
        attend(step, torch.zeros(1), None)
    with pytest.raises(AssertionError, match="window: 0"):
        attend(step, torch.zeros(4), 0)
