"""Random steps: sessions with paged prefixes, a tree each, and what attention and walk have to know of them."""

from dataclasses import dataclass

import numpy as np
import torch

from draftwood_kernels.bench.shapes import Setting, StepShape
from draftwood_kernels.tree_attention import PagedLayout, build_paged_layout
from draftwood_kernels.walk_tree.kernel import FlatTrees

# Room behind every prefix: a root and 64 nodes.
_MOST_ROWS = 65


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """N = batch * (nodes + 1) rows; session s has slots slots[s] (int64 [batch, nodes + 1]) to commit into."""

    layout: PagedLayout
    trees: FlatTrees
    token_ids: torch.Tensor  # int64 [N]
    positions: torch.Tensor  # int64 [N]
    slots: torch.Tensor
    total_slots: int


def make_step(shape: StepShape, vocab: int, setting: Setting) -> StepInputs:
    """Pages are shuffled; nodes hang on one of the two nodes before them, so that trees are deep and have branches.

    Steps of one batch and context have the same pages, roots and first nodes, whatever the number of nodes.
    """
    rng = np.random.default_rng(0)
    rows, page_size = shape.nodes + 1, setting.page_size
    parents = np.array([-1, *(rng.integers(max(0, row - 2), row) for row in range(1, rows))], np.int32)
    pages = -(-(shape.context + _MOST_ROWS) // page_size)
    tables = np.random.default_rng(1).permutation(shape.batch * pages).astype(np.int32).reshape(shape.batch, pages)
    offsets = (np.arange(shape.batch + 1) * rows).astype(np.int32)
    layout = build_paged_layout(
        row_offsets=offsets,
        prefix_lens=np.full(shape.batch, shape.context, np.int32),
        block_tables=tables,
        parents=np.tile(parents, shape.batch),
        page_size=page_size,
        device=setting.device,
    )
    token_ids = np.random.default_rng(2).integers(0, vocab, (rows, shape.batch)).T
    ahead = shape.context + np.arange(rows)

    def ints(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(setting.device)

    return StepInputs(
        layout=layout,
        trees=FlatTrees(
            first_rows=ints(offsets[:-1]),
            offsets=ints(np.arange(shape.batch + 1) * shape.nodes),
            token_ids=ints(token_ids[:, 1:].flatten()),
            parents=ints(np.tile(parents[1:], shape.batch)),
        ),
        token_ids=torch.from_numpy(token_ids.flatten()).to(setting.device),
        positions=(shape.context + layout.depths).long(),
        slots=torch.from_numpy(tables[:, ahead // page_size].astype(np.int64) * page_size + ahead % page_size).to(
            setting.device
        ),
        total_slots=tables.size * page_size,
    )
