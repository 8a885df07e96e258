"""Both ops against a softmax over each row's own keys in float64, over side-by-side and scattered pages."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_kernels.latent_attention import latent_attention
from draftwood_kernels.sink_attention import sink_attention
from draftwood_kernels.tree_attention import AttentionLayout, build_layout, tree_attention

PAGE_SIZE, HEADS, SCALE = 4, 6, 0.3
PARENTS = [[-1, 0, 0, 1, 3, 2], [-1, 0, 1, 2, 3], [-1]]
PREFIXES = [13, 6, 21]
# The pages of the first lie side by side with room to extend.
TABLES = [[2, 3, 4, 5, 6], [30, 9], [25, 11, 20, 17, 8, 12]]


@dataclass(frozen=True)
class Step:
    prefixes: list[torch.Tensor]
    queries: torch.Tensor
    fresh: torch.Tensor
    pages: torch.Tensor
    layout: AttentionLayout
    workspace: torch.Tensor


def make(row: tuple[int, int]) -> Step:
    """row: heads and numbers a head of a cache row."""
    torch.manual_seed(0)
    rows = sum(map(len, PARENTS))
    pages = torch.full((32 * PAGE_SIZE, *row), torch.nan)
    prefixes = [torch.randn(length, *row) for length in PREFIXES]
    for prefix, table in zip(prefixes, TABLES, strict=True):
        for position, entry in enumerate(prefix):
            pages[table[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE] = entry
    layout = build_layout(
        row_offsets=np.cumsum([0, *map(len, PARENTS)]).astype(np.int32),
        prefix_lens=np.array(PREFIXES, np.int32),
        block_tables=[np.array(table, np.int32) for table in TABLES],
        parents=np.concatenate([np.array(parents, np.int32) for parents in PARENTS]),
        extends=np.array([True, False, True]),
        page_size=PAGE_SIZE,
    )
    assert [segment.start is None for segment in layout.segments] == [False, True, True]
    workspace = torch.full((layout.workspace_rows, *row), torch.nan)
    return Step(prefixes, torch.randn(rows, HEADS, row[1]), torch.randn(rows, *row), pages, layout, workspace)


def seen(step: Step) -> list[tuple[torch.Tensor, NDArray[np.int64]]]:
    """For each row of the step: what it sees [S, C, D], and how far behind it that is."""
    views, first = [], 0
    for parents, prefix in zip(PARENTS, step.prefixes, strict=True):
        for row in range(len(parents)):
            path = [row]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            keys = torch.cat([prefix, step.fresh[[first + node for node in reversed(path)]]])
            views.append((keys, np.arange(len(keys))[::-1]))
        first += len(parents)
    return views


def test_latents_are_keys_and_in_part_values_of_all_heads() -> None:
    step = make((1, 20))
    out = latent_attention(step.queries, step.fresh, step.pages, step.workspace, step.layout, value_dim=12, scale=SCALE)
    assert out.shape == (len(step.queries), HEADS, 12)
    for row, (keys, _) in enumerate(seen(step)):
        latents = keys[:, 0].double()
        weights = torch.softmax(step.queries[row].double() @ latents.T * SCALE, dim=-1)
        torch.testing.assert_close(out[row].double(), weights @ latents[:, :12], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_sinks_take_weight_and_windows_hide_what_is_far(window: int | None) -> None:
    step, sinks = make((4, 8)), torch.randn(HEADS)
    out = sink_attention(step.queries, step.fresh, step.pages, step.workspace, step.layout, sinks=sinks, window=window)
    for row, (keys, behind) in enumerate(seen(step)):
        near = keys[torch.from_numpy(behind < (window or len(keys)))].double()
        for head in range(HEADS):
            key, value = near[:, head // 3], near[:, 2 + head // 3]
            scores = key @ step.queries[row, head].double() / 8**0.5
            weights = torch.softmax(torch.cat([scores, sinks[head : head + 1].double()]), dim=0)[:-1]
            expected = weights @ value
            torch.testing.assert_close(out[row, head * 8 : head * 8 + 8].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_sink_without_weight_is_plain_tree_attention() -> None:
    step = make((4, 8))
    arguments = (step.queries, step.fresh, step.pages, step.workspace, step.layout)
    plain = tree_attention(*arguments)
    sunk = sink_attention(*arguments, sinks=torch.full((HEADS,), -torch.inf), window=None)
    torch.testing.assert_close(sunk, plain, rtol=1e-5, atol=1e-5)
