"""The Triton kernel, interpreted, against the torch op and a softmax over each row's own keys in float64."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_kernels.tree_attention import build_layout, tree_attention
from draftwood_kernels.tree_attention.kernel import tree_attention_triton
from draftwood_kernels.tree_attention.paged_layout import PagedLayout, pack_ancestors

PAGE_SIZE = 4
# A softmax of a few dozen keys, accumulated in float32; 16-bit numbers round weights and results to 11 and 8 bits.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A list entry a segment: its parents [R], prefix and queries, fresh keys and values of its rows."""

    parents: list[NDArray[np.int32]]
    prefixes: list[torch.Tensor]
    queries: list[torch.Tensor]
    fresh: list[torch.Tensor]

    def only(self, segment: int) -> "Step":
        one = slice(segment, segment + 1)
        return Step(
            parents=self.parents[one],
            prefixes=self.prefixes[one],
            queries=self.queries[one],
            fresh=self.fresh[one],
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
    layout = build_layout(
        row_offsets=offsets_of(step),
        prefix_lens=np.array([len(prefix) for prefix in step.prefixes], np.int32),
        block_tables=tables,
        parents=np.concatenate(parents),
        extends=np.zeros(3, np.bool_),
        page_size=PAGE_SIZE,
    )
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


def chain(size: int) -> NDArray[np.int32]:
    return np.arange(-1, size - 1, dtype=np.int32)


def random_tree(rng: np.random.Generator, size: int) -> NDArray[np.int32]:
    return np.array([-1, *(rng.integers(0, row) for row in range(1, size))], np.int32)


def make_step(
    parents: list[NDArray[np.int32]],
    prefix_lens: list[int],
    *,
    kv_heads: int,
    group: int,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Step:
    generator = torch.Generator().manual_seed(len(parents) + sum(prefix_lens))

    def normal(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, head_dim, generator=generator).to(dtype)

    return Step(
        parents=parents,
        prefixes=[normal(length, 2 * kv_heads) for length in prefix_lens],
        queries=[normal(len(rows), kv_heads * group) for rows in parents],
        fresh=[normal(len(rows), 2 * kv_heads) for rows in parents],
    )


def offsets_of(step: Step) -> NDArray[np.int32]:
    return np.cumsum([0, *(len(rows) for rows in step.parents)]).astype(np.int32)


def paged(step: Step) -> tuple[torch.Tensor, list[NDArray[np.int32]]]:
    """Prefixes on scattered pages; every slot that holds none of them is poisoned."""
    counts = [-(-len(prefix) // PAGE_SIZE) for prefix in step.prefixes]
    order = np.random.default_rng(len(counts)).permutation(sum(counts) + 3).astype(np.int32)
    tables = np.split(order[: sum(counts)], np.cumsum(counts)[:-1])
    pages = torch.full((len(order) * PAGE_SIZE, *step.fresh[0].shape[1:]), torch.nan, dtype=step.fresh[0].dtype)
    for table, prefix in zip(tables, step.prefixes, strict=True):
        positions = np.arange(len(prefix))
        pages[torch.from_numpy(table[positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE)] = (
            prefix
        )
    return pages, tables


def layout_of(step: Step, tables: list[NDArray[np.int32]]) -> PagedLayout:
    offsets = offsets_of(step)
    bits, chains = pack_ancestors(np.concatenate(step.parents), offsets)
    lengths = [len(prefix) for prefix in step.prefixes]
    # Behind a table's end: a page that does not exist.
    block_tables = np.full((len(tables), max(len(table) for table in tables) + 1), 2**30, np.int32)
    for row, table in zip(block_tables, tables, strict=True):
        row[: len(table)] = table
    return PagedLayout(
        row_offsets=torch.from_numpy(offsets),
        prefix_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=torch.from_numpy(block_tables),
        ancestors=bits,
        chains=chains,
        page_size=PAGE_SIZE,
        max_prefix_len=max(lengths),
    )


def attend(step: Step, *, split_keys: int) -> list[torch.Tensor]:
    pages, tables = paged(step)
    out = tree_attention_triton(
        torch.cat(step.queries), torch.cat(step.fresh), pages, layout_of(step, tables), split_keys=split_keys
    )
    return list(out.split([len(rows) for rows in step.parents]))


def close(step: Step, out: list[torch.Tensor]) -> None:
    tolerance = TOLERANCES[out[0].dtype]
    parts = zip(step.parents, step.prefixes, step.queries, step.fresh, out, strict=True)
    for parents, prefix, queries, fresh, part in parts:
        expected = dense(parents, prefix.double(), queries.double(), fresh.double())
        torch.testing.assert_close(part.double(), expected, rtol=tolerance, atol=tolerance)


def dense(parents: NDArray[np.int32], prefix: torch.Tensor, queries: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """All scores at once, in float64."""
    mask = torch.full((len(parents), len(prefix) + len(fresh)), -torch.inf, dtype=torch.float64)
    mask[:, : len(prefix)] = 0
    for row in range(len(parents)):
        mask[row, [len(prefix) + j for j in visible(parents, row)]] = 0
    keys, values = torch.cat([prefix, fresh]).transpose(0, 1).chunk(2)
    grouped = queries.unflatten(1, (len(keys), -1)).permute(1, 2, 0, 3)
    weights = torch.softmax(grouped @ keys[:, None].mT / queries.shape[2] ** 0.5 + mask, dim=-1)
    return (weights @ values[:, None]).permute(2, 0, 1, 3).flatten(1, 2)


def visible(parents: NDArray[np.int32], row: int) -> list[int]:
    seen = []
    while row >= 0:
        seen.append(row)
        row = int(parents[row])
    return seen
