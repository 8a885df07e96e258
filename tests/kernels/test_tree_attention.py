"""Attention of random trees against a softmax over each row's own keys in float64."""

import numpy as np
import pytest
import torch

from draftwood_kernels.tree_attention import build_layout, tree_attention

PAGE_SIZE = 4
KV_HEADS, GROUP, HEAD_DIM = 2, 3, 8
# Poisoned where nobody may look.
SLOTS = 40 * PAGE_SIZE


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_every_row_sees_prefix_ancestors_and_itself(seed: int, extend: bool) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    sizes, prefixes = rng.integers(1, 20, 4), rng.choice([0, 1, 3, 4, 17, 23], 4)
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    parents = [np.array([rng.integers(-1, row) for row in range(size)], np.int32) for size in sizes]
    parents[0] = np.arange(-1, sizes[0] - 1, dtype=np.int32)
    # Two sessions lie side by side with room, two are scattered.
    scattered = rng.permutation(np.arange(20, 40)).astype(np.int32)
    tables = [np.arange(10, dtype=np.int32), scattered[:10], np.arange(10, 20, dtype=np.int32), scattered[10:]]
    pages = torch.full((SLOTS, 2 * KV_HEADS, HEAD_DIM), torch.nan)
    prefix_rows = [[table[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(n)]
                   for table, n in zip(tables, prefixes, strict=True)]  # fmt: skip
    for slots in prefix_rows:
        pages[slots] = torch.randn(len(slots), 2 * KV_HEADS, HEAD_DIM)
    queries = torch.randn(int(offsets[-1]), KV_HEADS * GROUP, HEAD_DIM)
    fresh = torch.randn(int(offsets[-1]), 2 * KV_HEADS, HEAD_DIM)
    expected = torch.cat(
        [
            reference(queries[row], torch.cat([pages[prefix_rows[s]], fresh[visible(parents[s], row - first) + first]]))
            for s, first in enumerate(offsets[:-1].tolist())
            for row in range(first, int(offsets[s + 1]))
        ]
    )
    layout = build_layout(
        row_offsets=offsets,
        prefix_lens=prefixes.astype(np.int32),
        block_tables=tables,
        parents=np.concatenate(parents),
        extends=np.full(4, extend),
        page_size=PAGE_SIZE,
    )
    workspace = torch.full((layout.workspace_rows, 2 * KV_HEADS, HEAD_DIM), torch.nan)
    out = tree_attention(queries, fresh, pages, workspace, layout)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)
    assert [segment.start is not None for segment in layout.segments] == [extend, False, extend, False]


def visible(parents: np.ndarray, row: int) -> torch.Tensor:
    seen = []
    while row >= 0:
        seen.append(row)
        row = int(parents[row])
    return torch.tensor(seen)


def reference(queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
    """queries [H, D] and all keys and values that they see [n, C, D] -> [1, H * D] in float64."""
    keys, values = keys_values.double().chunk(2, dim=1)
    out = []
    for head, query in enumerate(queries.double()):
        weights = torch.softmax(keys[:, head // GROUP] @ query / HEAD_DIM**0.5, dim=0)
        out.append(weights @ values[:, head // GROUP])
    return torch.cat(out)[None]
