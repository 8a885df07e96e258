"""A step plan as tensors that the model takes."""

from dataclasses import dataclass

import torch
from draftwood_kernels.tree_attention import AttentionLayout


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """token_ids int64 [N]; positions int64 [N]; logit_rows int64 [k], None when all rows want logits."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    layout: AttentionLayout
    logit_rows: torch.Tensor | None
