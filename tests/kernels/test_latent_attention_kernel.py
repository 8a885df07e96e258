"""Latent attention's Triton kernel, interpreted, against the torch op and a softmax over each row's own keys."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_kernels.latent_attention import latent_attention
from draftwood_kernels.latent_attention.kernel import latent_attention_triton
from tests.kernels.attention_steps import (
    TOLERANCES,
    Step,
    chain,
    gathered_layout,
    layout_of,
    paged,
    paths_of,
    random_step,
    random_tree,
)

SCALE = 0.3


def latent_step(
    parents: list[NDArray[np.int32]],
    prefix_lens: list[int],
    *,
    heads: int,
    latent_dim: int = 30,
    dtype: torch.dtype = torch.float32,
) -> Step:
    return random_step(parents, prefix_lens, heads=heads, entries=1, head_dim=latent_dim, dtype=dtype)


def attend(step: Step, *, value_dim: int = 20, scale: float = SCALE, split_keys: int = 16) -> torch.Tensor:
    pages, tables = paged(step)
    queries, fresh = torch.cat(step.queries), torch.cat(step.fresh)
    layout = layout_of(step, tables)
    return latent_attention_triton(
        queries, fresh, pages, layout, value_dim=value_dim, scale=scale, split_keys=split_keys
    )


def close(step: Step, out: torch.Tensor, scale: float = SCALE) -> None:
    tolerance, queries = TOLERANCES[out.dtype], torch.cat(step.queries).double()
    rows = zip(queries, paths_of(step), strict=True)
    expected = [torch.softmax(row @ path[:, 0].T * scale, dim=-1) @ path[:, 0, : out.shape[2]] for row, path in rows]
    torch.testing.assert_close(out.double(), torch.stack(expected), rtol=tolerance, atol=tolerance)


def test_one_launch_takes_chunks_trees_plain_rows_and_empty_segments() -> None:
    rng = np.random.default_rng(0)
    parents = [chain(20), random_tree(rng, 21), chain(1), chain(0), random_tree(rng, 2), random_tree(rng, 70)]
    step = latent_step(parents, [13, 40, 29, 0, 0, 3], heads=2)
    close(step, attend(step))


@pytest.mark.parametrize(("seed", "latent_dim", "value_dim"), [(0, 20, 12), (1, 80, 64), (2, 17, 16), (3, 65, 1)])
def test_random_ragged_batches(seed: int, latent_dim: int, value_dim: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_tree(rng, int(size)) for size in rng.integers(1, 12, 4)]
    heads = int(rng.choice([1, 4, 16]))
    step = latent_step(parents, rng.integers(0, 50, 4).tolist(), heads=heads, latent_dim=latent_dim)
    close(step, attend(step, value_dim=value_dim))


# Rows of 16: all used, one left over for two rows, four and one left over, two tiles a row, three with some left over.
@pytest.mark.parametrize("heads", [16, 7, 3, 32, 37])
def test_heads_fill_tiles_or_leave_some_of_them(heads: int) -> None:
    step = latent_step([random_tree(np.random.default_rng(1), 5), chain(1), chain(2)], [19, 33, 0], heads=heads)
    close(step, attend(step))


@pytest.mark.parametrize("prefix_len", [0, 1, 15, 16, 17])
def test_prefix_ends_around_pages_and_splits(prefix_len: int) -> None:
    parents = [chain(1), np.array([-1, 0], np.int32), np.array([-1, 0, 0, 1, -1], np.int32)]
    step = latent_step(parents, [prefix_len, max(prefix_len - 12, 0), prefix_len + 16], heads=4)
    close(step, attend(step))


def test_root_and_256_nodes() -> None:
    step = latent_step([random_tree(np.random.default_rng(2), 257)], [21], heads=1)
    close(step, attend(step))


def test_a_long_chunk_is_not_split() -> None:
    step = latent_step([chain(258), chain(1)], [24, 24], heads=1)
    close(step, attend(step))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sizes_of_deepseek_v3_in_16_bits(dtype: torch.dtype) -> None:
    parents = [np.array([-1, 0, 0, 1], np.int32), chain(1)]
    step, scale = latent_step(parents, [21, 9], heads=40, latent_dim=576, dtype=dtype), 0.05
    out = attend(step, value_dim=512, scale=scale)
    assert out.dtype == dtype
    close(step, out, scale)


@pytest.mark.parametrize(("latent_dim", "value_dim"), [(144, 128), (288, 256)])
def test_larger_latents(latent_dim: int, value_dim: int) -> None:
    step, scale = latent_step([random_tree(np.random.default_rng(3), 6)], [37], heads=5, latent_dim=latent_dim), 0.1
    close(step, attend(step, value_dim=value_dim, scale=scale), scale)


def test_the_torch_op_gives_the_same() -> None:
    parents = [random_tree(np.random.default_rng(4), 20), chain(9), chain(1)]
    step = latent_step(parents, [18, 8, 33], heads=3)
    pages, tables = paged(step)
    layout = gathered_layout(step, tables)
    workspace = torch.full((layout.workspace_rows, *pages.shape[1:]), torch.nan)
    tensors = torch.cat(step.queries), torch.cat(step.fresh), pages
    expected = latent_attention(*tensors, workspace, layout, value_dim=20, scale=SCALE)
    out = latent_attention(*tensors, None, layout_of(step, tables), value_dim=20, scale=SCALE)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="needs a workspace"):
        latent_attention(*tensors, None, layout, value_dim=20, scale=SCALE)


def test_a_row_has_the_same_bits_alone_and_in_a_batch_and_whatever_comes_behind_it() -> None:
    rng = np.random.default_rng(5)
    step = latent_step([random_tree(rng, 33), chain(1), chain(20)], [45, 64, 7], heads=3)
    together = attend(step).split([33, 1, 20])
    for segment, out in enumerate(together):
        assert torch.equal(attend(step.only(segment)), out)
    tree = step.only(0)
    cut = replace(tree, parents=[tree.parents[0][:9]], queries=[tree.queries[0][:9]], fresh=[tree.fresh[0][:9]])
    assert torch.equal(attend(cut), together[0][:9])


@pytest.mark.parametrize("heads", [4, 20])
def test_rows_of_nobody_are_zero(heads: int) -> None:
    step = latent_step([random_tree(np.random.default_rng(6), 5), chain(1)], [40, 3], heads=heads)
    pages, tables = paged(step)
    queries = torch.cat([*step.queries, torch.full((11, heads, 30), torch.nan)])
    fresh = torch.cat([*step.fresh, torch.full((11, 1, 30), torch.nan)])
    out = latent_attention(queries, fresh, pages, None, layout_of(step, tables, nobody=11), value_dim=20, scale=SCALE)
    assert not out[6:].any()
    close(step, out[:6])


def test_what_does_not_fit_is_refused() -> None:
    step = latent_step([chain(2)], [3], heads=1)
    with pytest.raises(AssertionError, match="30 value numbers of 30"):
        attend(step, value_dim=30)
    shorter = replace(step, fresh=[step.fresh[0][:, :, :29].contiguous()])
    with pytest.raises(AssertionError, match="2 rows of 30 numbers"):
        attend(replace(shorter, prefixes=[step.prefixes[0][:, :, :29]]))
    wide = latent_step([chain(1)], [3], heads=1, latent_dim=1100)
    with pytest.raises(AssertionError, match="no tile for 1024 value numbers"):
        attend(wide, value_dim=1024)
