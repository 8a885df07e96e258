"""The Triton kernel, interpreted, against the torch op and a softmax over each row's own keys in float64."""

import numpy as np
import pytest
import torch

from draftwood_kernels.tree_attention import tree_attention
from draftwood_kernels.tree_attention.kernel import tree_attention_triton
from draftwood_kernels.tree_attention.paged_layout import build_paged_layout, pack_ancestors, pack_paths
from tests.kernels.attention_steps import (
    PAGE_SIZE,
    Step,
    attend,
    chain,
    close,
    gathered_layout,
    layout_of,
    make_step,
    offsets_of,
    paged,
    random_tree,
    visible,
)


def test_one_launch_takes_chunks_trees_plain_rows_and_empty_segments() -> None:
    rng = np.random.default_rng(0)
    parents = [chain(37), random_tree(rng, 21), chain(1), chain(0), random_tree(rng, 2), random_tree(rng, 70)]
    step = make_step(parents, [13, 40, 29, 0, 0, 3], kv_heads=2, group=4, head_dim=64)
    close(step, attend(step, split_keys=16))
    close(step, attend(step, split_keys=64))


@pytest.mark.parametrize("seed", range(3))
def test_random_ragged_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_tree(rng, int(size)) for size in rng.integers(1, 30, 5)]
    group, head_dim = int(rng.choice([1, 2, 3, 5])), int(rng.choice([64, 80]))
    step = make_step(parents, rng.integers(0, 50, 5).tolist(), kv_heads=2, group=group, head_dim=head_dim)
    close(step, attend(step, split_keys=16))


@pytest.mark.parametrize("seed", range(2))
def test_the_torch_op_gives_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_tree(rng, 20), chain(9), chain(1)]
    step = make_step(parents, [18, 8, 33], kv_heads=2, group=2, head_dim=64)
    pages, tables = paged(step)
    layout = gathered_layout(step, tables)
    workspace = torch.full((layout.workspace_rows, *pages.shape[1:]), torch.nan)
    expected = tree_attention(torch.cat(step.queries), torch.cat(step.fresh), pages, workspace, layout)
    out = torch.cat(attend(step, split_keys=16))
    torch.testing.assert_close(out.flatten(1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("prefix_len", [0, 1, 15, 16, 17])
def test_prefix_ends_around_pages_and_splits(prefix_len: int, group: int) -> None:
    parents = [chain(1), np.array([-1, 0], np.int32), np.array([-1, 0, 0, 1, -1], np.int32)]
    lengths = [prefix_len, max(prefix_len - 12, 0), prefix_len + 16]
    step = make_step(parents, lengths, kv_heads=2, group=group, head_dim=64)
    close(step, attend(step, split_keys=16))


@pytest.mark.parametrize("group", [1, 4])
def test_root_and_256_nodes(group: int) -> None:
    rng = np.random.default_rng(group)
    step = make_step([random_tree(rng, 257), chain(1)], [21, 5], kv_heads=1, group=group, head_dim=64)
    close(step, attend(step, split_keys=16))


def test_a_long_chunk_is_not_split() -> None:
    step = make_step([chain(258), chain(257)], [24, 24], kv_heads=1, group=1, head_dim=64)
    close(step, attend(step, split_keys=16))


@pytest.mark.parametrize("head_dim", [128, 256])
def test_large_heads(head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    step = make_step([random_tree(rng, 19), chain(1)], [37, 20], kv_heads=1, group=4, head_dim=head_dim)
    close(step, attend(step, split_keys=32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_numbers(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    step = make_step([random_tree(rng, 19), chain(1), chain(6)], [37, 20, 0], kv_heads=2, group=4, dtype=dtype)
    out = attend(step, split_keys=16)
    assert {part.dtype for part in out} == {dtype}
    close(step, out)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    rng = np.random.default_rng(2)
    parents = [random_tree(rng, 33), chain(1), chain(40), random_tree(rng, 70), chain(1)]
    step = make_step(parents, [45, 64, 7, 0, 15], kv_heads=2, group=4, head_dim=64)
    together = attend(step, split_keys=16)
    for segment, out in enumerate(together):
        # The bound on prefix lengths, which sizes the launch, is another too.
        (alone,) = attend(step.only(segment), split_keys=16)
        assert torch.equal(alone, out)


def test_a_row_has_the_same_bits_whatever_comes_behind_it_in_the_tree() -> None:
    rng = np.random.default_rng(3)
    step = make_step([random_tree(rng, 90)], [37], kv_heads=1, group=4, head_dim=64)
    (whole,) = attend(step, split_keys=16)
    for size in (1, 7, 16, 64):
        queries, fresh = [step.queries[0][:size]], [step.fresh[0][:size]]
        cut = Step(parents=[step.parents[0][:size]], prefixes=step.prefixes, queries=queries, fresh=fresh)
        assert torch.equal(attend(cut, split_keys=16)[0], whole[:size])


def test_bits_are_rows_and_ancestors_and_chains_need_none() -> None:
    parents = np.concatenate([np.array([-1, 0, 0, 2, -1], np.int32), chain(100), np.array([-1, -1], np.int32)])
    bits, chains = pack_ancestors(parents, np.array([0, 5, 105, 105, 107], np.int32))
    assert bits.shape == (107, 1)
    assert bits[:5, 0].tolist() == [0b1, 0b11, 0b101, 0b1101, 0b10000]
    assert bits[105:, 0].tolist() == [0b1, 0b10]
    assert chains.tolist() == [0, 1, 1, 0]


def test_bits_of_a_large_tree_fill_several_words() -> None:
    parents = random_tree(np.random.default_rng(4), 257)
    bits, _ = pack_ancestors(parents, np.array([0, 257], np.int32))
    assert bits.shape == (257, 5)
    words = bits.numpy().view(np.uint64)
    for row in range(257):
        seen = [j for j in range(257) if int(words[row, j // 64]) >> (j % 64) & 1]
        assert seen == sorted(visible(parents, row))


def test_unlike_shapes_are_refused() -> None:
    step = make_step([chain(2)], [3], kv_heads=1, group=1, head_dim=64)
    pages, tables = paged(step)
    layout = layout_of(step, tables)
    with pytest.raises(AssertionError, match="ancestors of 2 rows beside 1"):
        tree_attention_triton(step.queries[0][:1], step.fresh[0][:1], pages, layout)


def test_paths_are_rows_by_depth_and_chains_need_none() -> None:
    parents = np.concatenate([np.array([-1, 0, 0, 2, -1], np.int32), chain(100), np.array([7, 7], np.int32)])
    offsets = np.array([0, 5, 105, 105], np.int32)
    _, chains = pack_ancestors(parents, offsets)
    paths, depths = pack_paths(parents, offsets, chains)
    assert paths.shape == (107, 3)
    assert depths.tolist() == [0, 1, 1, 2, 0, *range(100), 0, 0]
    assert [paths[row, : depth + 1].tolist() for row, depth in enumerate([0, 1, 1, 2, 0])] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 2, 3],
        [4],
    ]


def test_only_rows_whose_prefix_is_split_take_workspace() -> None:
    parents = [chain(3), chain(300), random_tree(np.random.default_rng(5), 258), chain(257)]
    step = make_step(parents, [9, 9, 9, 9], kv_heads=1, group=1)
    layout = layout_of(step, paged(step)[1])
    assert layout.split_offsets.tolist() == [0, 3, 3, 261, 518]
    assert layout.split_rows == 518


@pytest.mark.parametrize("row_invariant", [False, True])
@pytest.mark.parametrize("segments", [0, 2])
def test_rows_of_nobody_are_zero(segments: int, row_invariant: bool) -> None:
    """A step padded to its bucket: what stands behind the last offset must not bring NaN into the next layer."""
    rng = np.random.default_rng(6)
    step = make_step([random_tree(rng, 19), chain(1)][:segments], [40, 3][:segments], kv_heads=2, group=4)
    rows = sum(len(each) for each in step.parents)
    queries, fresh = (torch.full((rows + 37, heads, 64), torch.nan) for heads in (8, 4))
    pages, tables = paged(step) if segments else (torch.full((4, 4, 64), torch.nan), [])
    if segments:
        queries[:rows], fresh[:rows] = torch.cat(step.queries), torch.cat(step.fresh)
    block_tables = np.zeros((segments, 10), np.int32)
    for row, table in zip(block_tables, tables, strict=True):
        row[: len(table)] = table
    layout = build_paged_layout(
        row_offsets=offsets_of(step),
        prefix_lens=np.array([40, 3][:segments], np.int32),
        block_tables=block_tables,
        parents=np.concatenate([*step.parents, np.full(37, -9, np.int32)]),
        page_size=PAGE_SIZE,
        device=torch.device("cpu"),
    )
    out = tree_attention(queries, fresh, pages, None, layout, row_invariant=row_invariant)
    assert not out[rows:].any()
    if segments:
        close(step, list(out[:rows].view(rows, 8, 64).split([19, 1])))
