"""The attention block of one layer over the flat rows of a step."""

import torch

from draftwood_checkpoint.model_config import ModelConfig
from draftwood_kernels.rms_norm import rms_norm
from draftwood_kernels.rotary import rotate_pairs
from draftwood_kernels.tree_attention import AttentionLayout, tree_attention
from draftwood_verifier.model.weights import DecoderLayer


def attend(
    layer: DecoderLayer,
    config: ModelConfig,
    normed: torch.Tensor,
    phases: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    layout: AttentionLayout,
) -> torch.Tensor:
    """normed [N, E] -> o_proj's output [N, E].

    kv: the layer's pages [S, 2G, D], its scratch [N, 2G, D], which receives the rows' keys and values, a workspace.
    """
    pages, scratch, workspace = kv
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    fused = layer.qkv(normed).view(len(normed), heads + 2 * kv_heads, config.head_dim)
    queries_keys = fused.narrow(1, 0, heads + kv_heads)
    if layer.head_norm is not None:
        queries_keys = rms_norm(queries_keys, layer.head_norm, config.rms_norm_eps)
    queries_keys = rotate_pairs(queries_keys, phases)
    keys, values = queries_keys.narrow(1, heads, kv_heads), fused.narrow(1, heads + kv_heads, kv_heads)
    torch.cat([keys, values], dim=1, out=scratch)
    return layer.o(tree_attention(queries_keys.narrow(1, 0, heads), scratch, pages, workspace, layout))
