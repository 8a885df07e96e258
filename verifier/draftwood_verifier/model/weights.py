"""What a decoder is made of.

Shapes: E hidden, I intermediate, H query heads, G KV heads, D head size, V vocabulary.
"""

from dataclasses import dataclass

import torch

from draftwood_checkpoint.model_config import ModelConfig
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import halves_to_pairs
from draftwood_verifier.parallel.linear import Layer, Share, scaled


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """qkv [(H + 2G) * D, E] with queries and keys in pairs (see rotary); head_norm [H + G, D], or none.

    H, G and I are this rank's share; o and down give whole sums.
    """

    input_norm: torch.Tensor
    qkv: PackedLinear
    head_norm: torch.Tensor | None
    o: Layer
    post_attention_norm: torch.Tensor
    gate_up: PackedLinear
    down: Layer


@dataclass(frozen=True, kw_only=True)
class DecoderWeights:
    embedding: Layer  # token ids [N] -> [N, E]
    layers: list[DecoderLayer]
    norm: torch.Tensor
    head: PackedLinear  # [v, E], v this rank's share of V


def load_layer(checkpoint: Checkpoint, config: ModelConfig, share: Share, index: int) -> DecoderLayer:
    """One rank's share of the layer that Llama and Qwen3 have in common; switches of the config say what is in it."""
    c, prefix = config, f"model.layers.{index}."

    def norm(name: str, size: int) -> torch.Tensor:
        return checkpoint.load(f"{prefix}{name}.weight", (size,))

    return DecoderLayer(
        input_norm=norm("input_layernorm", c.hidden_size),
        qkv=_qkv(checkpoint, c, share, f"{prefix}self_attn."),
        head_norm=_head_norm(checkpoint, share.local(c), f"{prefix}self_attn.") if c.qk_norm else None,
        o=_output(checkpoint, c, share, f"{prefix}self_attn.o_proj"),
        post_attention_norm=norm("post_attention_layernorm", c.hidden_size),
        gate_up=PackedLinear(
            torch.cat(
                [
                    checkpoint.load(
                        f"{prefix}mlp.{part}_proj.weight", (c.intermediate_size, c.hidden_size), rows=share.intermediate
                    )
                    for part in ("gate", "up")
                ]
            )
        ),
        down=share.summed(
            checkpoint.load(
                f"{prefix}mlp.down_proj.weight", (c.hidden_size, c.intermediate_size), columns=share.intermediate
            )
        ),
    )


def _qkv(checkpoint: Checkpoint, c: ModelConfig, share: Share, prefix: str) -> PackedLinear:
    """Queries, keys and values as one product."""
    weights, biases = [], []
    for part, heads, held in (
        ("q", c.num_attention_heads, share.heads),
        ("k", c.num_key_value_heads, share.kv_heads),
        ("v", c.num_key_value_heads, share.kv_heads),
    ):
        size, rows = heads * c.head_dim, scaled(held, c.head_dim)
        weight = checkpoint.load(f"{prefix}{part}_proj.weight", (size, c.hidden_size), rows=rows)
        weights.append(weight if part == "v" else halves_to_pairs(weight, c.head_dim))
        if c.attention_bias:
            bias = checkpoint.load(f"{prefix}{part}_proj.bias", (size,), rows=rows)
            biases.append(bias if part == "v" else halves_to_pairs(bias, c.head_dim))
    return PackedLinear(torch.cat(weights), torch.cat(biases) if biases else None)


def _head_norm(checkpoint: Checkpoint, c: ModelConfig, prefix: str) -> torch.Tensor:
    """q_norm for every query head, then k_norm for every KV head."""
    norms = []
    for part, heads in (("q", c.num_attention_heads), ("k", c.num_key_value_heads)):
        weight = checkpoint.load(f"{prefix}{part}_norm.weight", (c.head_dim,))
        norms.append(halves_to_pairs(weight, c.head_dim).expand(heads, -1))
    return torch.cat(norms)


def _output(checkpoint: Checkpoint, c: ModelConfig, share: Share, name: str) -> Layer:
    bias = checkpoint.load(f"{name}.bias", (c.hidden_size,)) if c.attention_bias else None
    shape = (c.hidden_size, c.num_attention_heads * c.head_dim)
    return share.summed(checkpoint.load(f"{name}.weight", shape, columns=scaled(share.heads, c.head_dim)), bias)
