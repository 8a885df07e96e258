"""What candidates and trees look like as tensors of one device. Shapes: R rows, K candidates, S sessions, N nodes."""

from dataclasses import dataclass

import torch

# What the kernels take: a node's place is packed into 32 bits.
MOST_CANDIDATES, MOST_DEPTHS, MOST_NODES = 256, 256, 256


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The K best tokens of each row: log_probs float32 [R, K], falling along K, and token_ids int32 [R, K]."""

    log_probs: torch.Tensor
    token_ids: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class DraftTrees:
    """Trees as `best_first` makes them: token_ids and parents int32 [S, N], log_probs float32 [S, N].

    Session s has counts[s] nodes (int32 [S]); what lies behind them is undefined.
    """

    token_ids: torch.Tensor
    parents: torch.Tensor
    log_probs: torch.Tensor
    counts: torch.Tensor
