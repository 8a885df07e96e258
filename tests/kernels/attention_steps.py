"""Steps of random trees over paged prefixes, and a softmax over each row's own keys in float64 as their oracle."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.invariant_tree_attention.kernel import invariant_tree_attention
from draftwood_kernels.tree_attention import AttentionLayout, build_layout
from draftwood_kernels.tree_attention.kernel import tree_attention_triton
from draftwood_kernels.tree_attention.paged_layout import PagedLayout, build_paged_layout

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
    return random_step(
        parents, prefix_lens, heads=kv_heads * group, entries=2 * kv_heads, head_dim=head_dim, dtype=dtype
    )


def random_step(
    parents: list[NDArray[np.int32]],
    prefix_lens: list[int],
    *,
    heads: int,
    entries: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
) -> Step:
    """A cache row is [entries, head_dim]."""
    generator = torch.Generator().manual_seed(len(parents) + sum(prefix_lens))

    def normal(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, head_dim, generator=generator).to(dtype)

    return Step(
        parents=parents,
        prefixes=[normal(length, entries) for length in prefix_lens],
        queries=[normal(len(rows), heads) for rows in parents],
        fresh=[normal(len(rows), entries) for rows in parents],
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


def layout_of(step: Step, tables: list[NDArray[np.int32]], nobody: int = 0) -> PagedLayout:
    """Of the step and `nobody` rows behind it."""
    # Behind a table's end: a page that does not exist.
    block_tables = np.full((len(tables), max(len(table) for table in tables) + 1), 2**30, np.int32)
    for row, table in zip(block_tables, tables, strict=True):
        row[: len(table)] = table
    return build_paged_layout(
        row_offsets=offsets_of(step),
        prefix_lens=np.array([len(prefix) for prefix in step.prefixes], np.int32),
        block_tables=block_tables,
        parents=np.concatenate([*step.parents, np.full(nobody, -9, np.int32)]),
        page_size=PAGE_SIZE,
        device=torch.device("cpu"),
    )


def attend(step: Step, *, split_keys: int, row_invariant: bool = False) -> list[torch.Tensor]:
    pages, tables = paged(step)
    run = invariant_tree_attention if row_invariant else tree_attention_triton
    out = run(torch.cat(step.queries), torch.cat(step.fresh), pages, layout_of(step, tables), split_keys=split_keys)
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


def paths_of(step: Step) -> Iterator[torch.Tensor]:
    """For each row in turn, in float64: the cache rows [L, C, D] of all positions up to its own."""
    for parents, prefix, fresh in zip(step.parents, step.prefixes, step.fresh, strict=True):
        for row in range(len(parents)):
            yield torch.cat([prefix, fresh[sorted(visible(parents, row))]]).double()


def gathered_layout(step: Step, tables: list[NDArray[np.int32]]) -> AttentionLayout:
    """What the torch op takes for the same pages."""
    return build_layout(
        row_offsets=offsets_of(step),
        prefix_lens=np.array([len(prefix) for prefix in step.prefixes], np.int32),
        block_tables=tables,
        parents=np.concatenate(step.parents),
        extends=np.zeros(len(tables), np.bool_),
        page_size=PAGE_SIZE,
    )


def visible(parents: NDArray[np.int32], row: int) -> list[int]:
    seen = []
    while row >= 0:
        seen.append(row)
        row = int(parents[row])
    return seen
