"""Whose context is where, and which heads a kernel takes."""

from dataclasses import dataclass

import torch

MOST_HEAD_DIM, MOST_GROUP = 256, 32


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Context lengths int32 [S] and the pages that hold it, block_tables int32 [S, W], both on the device of the rows.

    Lengths are read on the device only: W pages are the bound that sizes a launch. A session without context sees its
    own block alone.
    """

    lengths: torch.Tensor
    block_tables: torch.Tensor
    page_size: int


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ValueError for heads that no tile of the kernel takes; to be asked before there are any rows."""
    if head_dim > MOST_HEAD_DIM:
        raise ValueError(f"head_dim: {head_dim}, block attention on a GPU takes up to {MOST_HEAD_DIM}")
    if heads // kv_heads > MOST_GROUP:
        raise ValueError(
            f"num_attention_heads: {heads // kv_heads} a KV head, block attention on a GPU takes up to {MOST_GROUP}"
        )
