"""What the paged kernel has to know of a step, as flat arrays on the device: made once a step, used by all layers."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

WORD_BITS = 64


@dataclass(frozen=True, kw_only=True)
class PagedLayout:
    """row_offsets int32 [S + 1], prefix_lens int32 [S], block_tables int32 [S, pages], ancestors int64 [N, W] and
    chains int32 [S] as `pack_ancestors` makes them, all on one device.

    Lengths are read on the device only; `max_prefix_len` is an upper bound that sizes the launch. Rows behind the last
    offset belong to nobody and are not computed. A segment may be empty.
    """

    row_offsets: torch.Tensor
    prefix_lens: torch.Tensor
    block_tables: torch.Tensor
    ancestors: torch.Tensor
    chains: torch.Tensor
    page_size: int
    max_prefix_len: int


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
