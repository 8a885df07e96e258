"""What a decoder is made of.

Shapes: E hidden, I intermediate, H query heads, G KV heads, D head size, V vocabulary.
"""

from dataclasses import dataclass

import torch

from draftwood_checkpoint.model_config import ModelConfig
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import halves_to_pairs


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """qkv [(H + 2G) * D, E] with queries and keys in pairs (see rotary); head_norm [H + G, D], or none."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    head_norm: torch.Tensor | None
    o: PackedLinear
    post_attention_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, kw_only=True)
class DecoderWeights:
    embedding: torch.Tensor  # [V, E]
    layers: list[DecoderLayer]
    norm: torch.Tensor
    head: PackedLinear


def load_layer(checkpoint: Checkpoint, config: ModelConfig, index: int) -> DecoderLayer:
    """The layer that Llama and Qwen3 share; switches of the config say what is in it."""
    c, prefix = config, f"model.layers.{index}."

    def norm(name: str, size: int) -> torch.Tensor:
        return checkpoint.load(f"{prefix}{name}.weight", (size,))

    return DecoderLayer(
        input_norm=norm("input_layernorm", c.hidden_size),
        qkv=_qkv(checkpoint, c, f"{prefix}self_attn."),
        head_norm=_head_norm(checkpoint, c, f"{prefix}self_attn.") if c.qk_norm else None,
        o=_linear(checkpoint, f"{prefix}self_attn.o_proj", c.hidden_size, c.num_attention_heads * c.head_dim, c),
        post_attention_norm=norm("post_attention_layernorm", c.hidden_size),
        gate_up=PackedLinear(
            torch.cat(
                [
                    checkpoint.load(f"{prefix}mlp.{part}_proj.weight", (c.intermediate_size, c.hidden_size))
                    for part in ("gate", "up")
                ]
            )
        ),
        down=PackedLinear(checkpoint.load(f"{prefix}mlp.down_proj.weight", (c.hidden_size, c.intermediate_size))),
    )


def _qkv(checkpoint: Checkpoint, c: ModelConfig, prefix: str) -> PackedLinear:
    """Queries, keys and values as one product."""
    weights, biases = [], []
    for part, heads in (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)):
        rows = heads * c.head_dim
        weight = checkpoint.load(f"{prefix}{part}_proj.weight", (rows, c.hidden_size))
        weights.append(weight if part == "v" else halves_to_pairs(weight, c.head_dim))
        if c.attention_bias:
            bias = checkpoint.load(f"{prefix}{part}_proj.bias", (rows,))
            biases.append(bias if part == "v" else halves_to_pairs(bias, c.head_dim))
    return PackedLinear(torch.cat(weights), torch.cat(biases) if biases else None)


def _head_norm(checkpoint: Checkpoint, c: ModelConfig, prefix: str) -> torch.Tensor:
    """q_norm for every query head, then k_norm for every KV head."""
    norms = []
    for part, heads in (("q", c.num_attention_heads), ("k", c.num_key_value_heads)):
        weight = checkpoint.load(f"{prefix}{part}_norm.weight", (c.head_dim,))
        norms.append(halves_to_pairs(weight, c.head_dim).expand(heads, -1))
    return torch.cat(norms)


def _linear(checkpoint: Checkpoint, name: str, rows: int, columns: int, c: ModelConfig) -> PackedLinear:
    bias = checkpoint.load(f"{name}.bias", (rows,)) if c.attention_bias else None
    return PackedLinear(checkpoint.load(f"{name}.weight", (rows, columns)), bias)
