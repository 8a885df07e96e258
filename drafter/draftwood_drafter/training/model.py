"""The DFlash drafter as a trainable module; parameter names are those of published checkpoints.

Shapes: S sequences, T context positions, A anchors a sequence, b block slots, F = target layers * hidden, H hidden.
Source: DFlash (arXiv 2602.06036) section 3 and the published checkpoints.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftwood_checkpoint.draft_config import DraftConfig


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast the input is bf16; norms are computed in float32 all the same.
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Queries from the block, keys and values from context features and block, by the same projections."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, hidden = config.head_dim, config.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x_SQH: Tensor, c_STH: Tensor, rope_q: Tensor, rope_k: Tensor, visible_SQK: Tensor) -> Tensor:
        both = torch.cat([c_STH, x_SQH], dim=1)
        q = rotate(self.q_norm(self.q_proj(x_SQH).unflatten(-1, (self.heads, -1))), rope_q)
        k = rotate(self.k_norm(self.k_proj(both).unflatten(-1, (self.kv_heads, -1))), rope_k)
        v = self.v_proj(both).unflatten(-1, (self.kv_heads, -1))
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), visible_SQK[:, None], enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x_SQH: Tensor, c_STH: Tensor, rope_q: Tensor, rope_k: Tensor, visible_SQK: Tensor) -> Tensor:
        x_SQH = x_SQH + self.self_attn(self.input_layernorm(x_SQH), c_STH, rope_q, rope_k, visible_SQK)
        return x_SQH + self.mlp(self.post_attention_layernorm(x_SQH))  # type: ignore[no-any-return]


class TrainableDrafter(nn.Module):
    """Full attention in every layer: bidirectional inside a block, all context before its anchor."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, embedded_SQH: Tensor, features_STF: Tensor, anchors_SA: Tensor) -> Tensor:
        """Final hidden rows [S, A * b, H] of blocks that start at `anchors` (positions; Q = A * b)."""
        block = self.config.block_size
        context = features_STF.shape[1]
        positions_SQ = (anchors_SA[..., None] + torch.arange(block)).flatten(1)
        rope_q = rope(positions_SQ, self.config)
        ahead = torch.arange(context).expand(len(anchors_SA), -1)
        rope_k = rope(torch.cat([ahead, positions_SQ], dim=1), self.config)
        visible = block_mask(anchors_SA, context, block)
        c_STH = self.hidden_norm(self.fc(features_STF))
        x = embedded_SQH
        for layer in self.layers:
            x = layer(x, c_STH, rope_q, rope_k, visible)
        return self.norm(x)  # type: ignore[no-any-return]


def block_mask(anchors_SA: Tensor, context: int, block: int) -> Tensor:
    """What each block row sees, bool [S, A * b, T + A * b]: context strictly before its anchor, and its own block."""
    sequences, anchors = anchors_SA.shape
    before = torch.arange(context) < anchors_SA[..., None]
    before = before[:, :, None].expand(-1, -1, block, -1).flatten(1, 2)
    owner = torch.arange(anchors).repeat_interleave(block)
    same = owner[:, None] == owner
    return torch.cat([before, same.expand(sequences, -1, -1)], dim=2)


def rope(positions: Tensor, config: DraftConfig) -> Tensor:
    """cos and sin stacked, [2, S, rows, 1, head_dim]."""
    half = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = positions[..., None].float() * config.rope.theta**-half
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * table[0] + torch.cat([-right, left], dim=-1) * table[1]
