"""What the paged kernels have to know of a step, as flat arrays on the device: made once a step, used by all layers."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

WORD_BITS = 64
# Longer chains are prefill chunks: their rows fill the machine, splitting would only write partial results.
LONGEST_SPLIT_CHAIN = 257


@dataclass(frozen=True, kw_only=True)
class PagedLayout:
    """row_offsets int32 [S + 1], prefix_lens int32 [S], block_tables int32 [S, pages], ancestors int64 [N, W] and
    chains int32 [S] as `pack_ancestors` makes them, paths int32 [N, P] and depths int32 [N] as `pack_paths` does,
    split_offsets int32 [S + 1] as `split_offsets_of`; all on one device.

    Lengths are read on the device only; `max_prefix_len`, `max_depth` (positions of the longest path of rows) and
    `split_rows` are upper bounds that size launches and workspace. The result of rows behind the last offset, which
    belong to nobody, is zero. A segment may be empty.
    """

    row_offsets: torch.Tensor
    prefix_lens: torch.Tensor
    block_tables: torch.Tensor
    ancestors: torch.Tensor
    chains: torch.Tensor
    paths: torch.Tensor
    depths: torch.Tensor
    split_offsets: torch.Tensor
    split_rows: int
    page_size: int
    max_prefix_len: int
    max_depth: int


def build_paged_layout(
    *,
    row_offsets: NDArray[np.int32],
    prefix_lens: NDArray[np.int32],
    block_tables: NDArray[np.int32],
    parents: NDArray[np.int32],
    page_size: int,
    device: torch.device,
) -> PagedLayout:
    """row_offsets [S + 1], prefix_lens [S], block_tables [S, pages]; parents [N] as for `pack_ancestors`, of which
    those behind the last offset are not read."""
    ancestors, chains = pack_ancestors(parents, row_offsets)
    paths, depths = pack_paths(parents, row_offsets, chains)
    split_offsets = split_offsets_of(row_offsets, chains)

    def place(array: NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return PagedLayout(
        row_offsets=place(row_offsets),
        prefix_lens=place(prefix_lens),
        block_tables=place(block_tables),
        ancestors=ancestors.to(device),
        chains=chains.to(device),
        paths=paths.to(device),
        depths=depths.to(device),
        split_offsets=split_offsets.to(device),
        split_rows=int(split_offsets[-1]),
        page_size=page_size,
        max_prefix_len=int(prefix_lens.max(initial=0)),
        max_depth=int(depths.max()) + 1 if len(depths) else 0,
    )


def pack_ancestors(parents: NDArray[np.int32], row_offsets: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """parents [N], relative to the segment's first row and smaller than their child, -1 hangs on the prefix
    -> (ancestors int64 [N, W], chains int32 [S]).

    Bit j of a row: it sees row j of its segment, itself included. Segments that are chains need no bits: their flag
    says causal, so that W follows the largest tree, not the largest prefill chunk.
    """
    sizes = np.diff(row_offsets)
    firsts = np.repeat(row_offsets[:-1], sizes).astype(np.int64)
    locals_ = np.arange(len(firsts)) - firsts
    owners = np.repeat(np.arange(len(sizes)), sizes)
    bent = parents[: len(firsts)] != locals_ - 1
    chains = np.bincount(owners[bent], minlength=len(sizes)) == 0
    largest = int(sizes[~chains].max(initial=1))
    words = np.zeros((len(parents), -(-largest // WORD_BITS)), np.uint64)
    rows = np.flatnonzero(~chains[owners])
    ancestors = locals_[rows]
    while len(rows):
        words[rows, ancestors // WORD_BITS] |= np.uint64(1) << (ancestors % WORD_BITS).astype(np.uint64)
        above = parents[firsts[rows] + ancestors]
        rows, ancestors = rows[above >= 0], above[above >= 0].astype(np.int64)
    return torch.from_numpy(words.view(np.int64)), torch.from_numpy(chains.astype(np.int32))


def pack_paths(
    parents: NDArray[np.int32], row_offsets: NDArray[np.int32], chains: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """parents [N] and chains [S] as in `pack_ancestors` -> (paths int32 [N, P], depths int32 [N]).

    Row n stands at position prefix + depths[n], and paths[n, d] is the row of its segment that stands at prefix + d,
    for d up to its depth. Rows of chains have depths only, so that P follows the deepest tree.
    """
    sizes = np.diff(row_offsets)
    locals_ = np.arange(int(row_offsets[-1])) - np.repeat(row_offsets[:-1], sizes)
    is_chain = np.repeat(chains.numpy() != 0, sizes)
    depths = np.zeros(len(parents), np.int32)
    depths[: len(locals_)] = locals_
    trees = np.flatnonzero(~is_chain)
    firsts = trees - locals_[trees]
    for row, first in zip(trees.tolist(), firsts.tolist(), strict=True):
        depths[row] = depths[first + parents[row]] + 1 if parents[row] >= 0 else 0
    paths = np.zeros((len(parents), int(depths[trees].max(initial=0)) + 1), np.int32)
    rows, nodes = trees, locals_[trees]
    while len(rows):
        paths[rows, depths[firsts + nodes]] = nodes
        above = parents[firsts + nodes]
        rows, firsts, nodes = rows[above >= 0], firsts[above >= 0], above[above >= 0]
    return torch.from_numpy(paths), torch.from_numpy(depths)


def split_offsets_of(row_offsets: NDArray[np.int32], chains: torch.Tensor) -> torch.Tensor:
    """int32 [S + 1]: places of the rows whose prefix may be split, those of the segments before each one added up."""
    sizes = np.diff(row_offsets)
    whole = (chains.numpy() != 0) & (sizes > LONGEST_SPLIT_CHAIN)
    return torch.from_numpy(np.concatenate([[0], np.cumsum(np.where(whole, 0, sizes))]).astype(np.int32))
