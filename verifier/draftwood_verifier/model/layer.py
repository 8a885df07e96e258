"""What a decoder layer is made of; a family chooses the parts.

Shapes: N rows, E hidden, S slots, C and D as the family's cache row has them.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from draftwood_kernels.tree_attention import Layout

# The layer's pages [S, C, D], its scratch [N, C, D], which receives the rows' own entries, and a workspace, which a
# PagedLayout does without.
LayerKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


class Attention(Protocol):
    def __call__(self, normed: torch.Tensor, phases: torch.Tensor, kv: LayerKV, layout: Layout) -> torch.Tensor:
        """normed [N, E] -> the output projection's [N, E]; phases as `RotaryTable.phases` makes them."""


class Mlp(Protocol):
    def __call__(self, normed: torch.Tensor, /) -> torch.Tensor:
        """normed [N, E] -> a new tensor [N, E]."""


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """Both norms float32 [E]."""

    input_norm: torch.Tensor
    attention: Attention
    post_attention_norm: torch.Tensor
    mlp: Mlp
