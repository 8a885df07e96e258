"""Row-invariant attention, interpreted: right, and the same bits however a position comes into a step."""

import numpy as np
import pytest
import torch

from tests.kernels.attention_steps import Step, attend, chain, close, make_step, random_tree, visible


def test_one_launch_takes_chunks_trees_plain_rows_and_empty_segments() -> None:
    rng = np.random.default_rng(0)
    parents = [chain(37), random_tree(rng, 21), chain(1), chain(0), random_tree(rng, 2), random_tree(rng, 70)]
    step = make_step(parents, [13, 40, 29, 0, 0, 3], kv_heads=2, group=4)
    close(step, attend(step, split_keys=64, row_invariant=True))


@pytest.mark.parametrize("seed", range(3))
def test_random_ragged_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [random_tree(rng, int(size)) for size in rng.integers(1, 20, 4)]
    group, head_dim = int(rng.choice([1, 2, 3, 8])), int(rng.choice([64, 80]))
    step = make_step(parents, rng.integers(0, 70, 4).tolist(), kv_heads=2, group=group, head_dim=head_dim)
    close(step, attend(step, split_keys=64, row_invariant=True))


@pytest.mark.parametrize("head_dim", [128, 256])
def test_large_heads(head_dim: int) -> None:
    step = make_step(
        [random_tree(np.random.default_rng(1), 9), chain(1)], [37, 20], kv_heads=1, group=4, head_dim=head_dim
    )
    close(step, attend(step, split_keys=64, row_invariant=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_numbers(dtype: torch.dtype) -> None:
    step = make_step(
        [random_tree(np.random.default_rng(1), 11), chain(1), chain(6)], [37, 63, 0], kv_heads=2, group=4, dtype=dtype
    )
    close(step, attend(step, split_keys=64, row_invariant=True))


def test_a_long_chunk_joins_its_splits_itself() -> None:
    step = make_step([chain(258), chain(257)], [24, 24], kv_heads=1, group=1)
    close(step, attend(step, split_keys=64, row_invariant=True))


def as_plain(step: Step, segment: int, rows: list[int]) -> Step:
    """Each row as a session of its own, with its path in the pages."""
    prefixes, queries, fresh = [], [], []
    for row in rows:
        path = sorted(visible(step.parents[segment], row))
        prefixes.append(torch.cat([step.prefixes[segment], step.fresh[segment][path[:-1]]]))
        queries.append(step.queries[segment][row : row + 1])
        fresh.append(step.fresh[segment][row : row + 1])
    return Step(parents=[chain(1)] * len(rows), prefixes=prefixes, queries=queries, fresh=fresh)


# (prefix length, rows of the tree): inside a block, at a block's end, across the end of a split, without a prefix.
@pytest.mark.usefixtures("rows_multiplied_alike")
@pytest.mark.parametrize(("prefix_len", "size"), [(37, 40), (32, 9), (61, 30), (0, 12), (31, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_node_has_the_bits_of_the_plain_row_at_its_position(prefix_len: int, size: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(size)
    # Deep enough that paths leave the split where the prefix ends.
    parents = np.array([-1, *(rng.integers(max(0, row - 2), row) for row in range(1, size))], np.int32)
    step = make_step([parents], [prefix_len], kv_heads=1, group=4, dtype=dtype)
    (nodes,) = attend(step, split_keys=64, row_invariant=True)
    rows = [0, *sorted({size // 3, size // 2, size - 1})]
    plain = attend(as_plain(step, 0, rows), split_keys=64, row_invariant=True)
    assert torch.equal(torch.cat(plain), nodes[rows])


@pytest.mark.usefixtures("rows_multiplied_alike")
@pytest.mark.parametrize("size", [40, 258])
def test_a_chunk_row_has_the_bits_of_the_plain_row_at_its_position(size: int) -> None:
    """Below and above the length from which a chunk joins its splits itself."""
    step = make_step([chain(size)], [45], kv_heads=1, group=2)
    (chunk,) = attend(step, split_keys=64, row_invariant=True)
    rows = [0, 18, 19, 20, size - 1]
    plain = attend(as_plain(step, 0, rows), split_keys=64, row_invariant=True)
    assert torch.equal(torch.cat(plain), chunk[rows])


@pytest.mark.usefixtures("rows_multiplied_alike")
def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    rng = np.random.default_rng(2)
    parents = [random_tree(rng, 13), chain(1), chain(40), random_tree(rng, 30), chain(1)]
    step = make_step(parents, [45, 64, 7, 0, 15], kv_heads=2, group=4)
    together = attend(step, split_keys=64, row_invariant=True)
    for segment, out in enumerate(together):
        (alone,) = attend(step.only(segment), split_keys=64, row_invariant=True)
        assert torch.equal(alone, out)


def test_splits_that_cut_a_block_are_refused() -> None:
    with pytest.raises(AssertionError, match="split_keys: 16 cuts a block"):
        attend(make_step([chain(1)], [3], kv_heads=1, group=1), split_keys=16, row_invariant=True)
