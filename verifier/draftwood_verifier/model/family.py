"""What distinguishes one model family from another."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import halves_to_pairs

from draftwood_verifier.model.attention import Attention, AttentionWeights
from draftwood_verifier.model.decoder import DecoderLayer


@dataclass(frozen=True, kw_only=True)
class Family:
    """`model_type` as in config.json; `load_layer` reads decoder layer i from a checkpoint."""

    model_type: str
    load_layer: Callable[[Checkpoint, ModelConfig, int], DecoderLayer]


def dense_layer(checkpoint: Checkpoint, config: ModelConfig, index: int, *, head_norms: bool) -> DecoderLayer:
    """A layer of q, k, v, o and gate, up, down projections under the names that Llama and its kin use."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return DecoderLayer(
        input_norm=_load(checkpoint, index, "input_layernorm.weight", (hidden,)),
        attention=_attention(checkpoint, config, index, head_norms=head_norms),
        post_attention_norm=_load(checkpoint, index, "post_attention_layernorm.weight", (hidden,)),
        gate_up=PackedLinear(
            torch.cat([_load(checkpoint, index, f"mlp.{part}_proj.weight", (inner, hidden)) for part in ("gate", "up")])
        ),
        down=PackedLinear(_load(checkpoint, index, "mlp.down_proj.weight", (hidden, inner))),
    )


def _attention(checkpoint: Checkpoint, config: ModelConfig, index: int, *, head_norms: bool) -> Attention:
    size, hidden = config.head_dim, config.hidden_size
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    qkv = [_heads(checkpoint, index, p, "weight", (n * size, hidden), size) for p, n in heads.items()]
    bias = o_bias = norm = None
    if config.attention_bias:
        bias = torch.cat([_heads(checkpoint, index, p, "bias", (n * size,), size) for p, n in heads.items()])
        o_bias = _load(checkpoint, index, "self_attn.o_proj.bias", (hidden,))
    if head_norms:
        norms = [_load(checkpoint, index, f"self_attn.{p}_norm.weight", (size,)) for p in "qk"]
        norm = torch.cat([halves_to_pairs(n, size).expand(heads[p], -1) for p, n in zip("qk", norms, strict=True)])
    o = PackedLinear(_load(checkpoint, index, "self_attn.o_proj.weight", (hidden, heads["q"] * size)), o_bias)
    return Attention(
        AttentionWeights(qkv=PackedLinear(torch.cat(qkv), bias), head_norm=norm, o=o),
        heads=heads["q"],
        kv_heads=heads["k"],
        head_dim=size,
        eps=config.rms_norm_eps,
    )


def _heads(
    checkpoint: Checkpoint, index: int, part: str, kind: str, shape: tuple[int, ...], head_dim: int
) -> torch.Tensor:
    """A q, k or v projection; q and k change to the layout that rotates fastest, v has no rotation."""
    weight = _load(checkpoint, index, f"self_attn.{part}_proj.{kind}", shape)
    return weight if part == "v" else halves_to_pairs(weight, head_dim)


def _load(checkpoint: Checkpoint, index: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return checkpoint.load(f"model.layers.{index}.{name}", shape)
