"""A draft checkpoint in the published format, completed with the target's embedding and head, as a DraftModel.

Of the target only the tensors used here are read: a drafter's machine need not hold the target.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from draftwood_checkpoint.draft_config import DraftConfig, load_draft_config
from draftwood_checkpoint.model_config import load_model_config
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_drafter.model import DraftLayer, DraftModel, DraftWeights
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.rotary import RotaryTable, halves_to_pairs
from draftwood_wire.errors import Incompatible

# Where families keep the tensors that the draft borrows, the usual place first.
_EMBEDDING_NAMES = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)
_HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
# Parts of draft variants with other arithmetic (DFlash2, DSpark): served without them, a draft would be nonsense.
_FOREIGN_PARTS = (
    "attention_conv",
    "mlp_conv",
    "candidate_selector",
    "markov_head",
    "confidence_head",
    "d2t",
    "lm_head",
)


def load_draft_model(
    target: Path, draft: Path, *, open_checkpoint: Callable[[Path], Checkpoint] = Checkpoint
) -> DraftModel:
    """Raises Incompatible when the draft does not fit the target, and the checkpoint's own errors."""
    config = load_draft_config(draft)
    checkpoint = open_checkpoint(draft)
    _check_variant(checkpoint)
    embedding, head = _borrow(target, open_checkpoint(target), config)
    return DraftModel(config, _weights(checkpoint, config, embedding, head), _rotary(config))


def _check_variant(checkpoint: Checkpoint) -> None:
    for name in checkpoint.names():
        foreign = [part for part in _FOREIGN_PARTS if part in name.split(".")]
        if foreign:
            raise Incompatible(f"draft: {name} belongs to a variant of DFlash that is not supported")


def _borrow(target: Path, checkpoint: Checkpoint, config: DraftConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's embedding and head, both [V, E]; one tensor when they are tied."""
    target_config = load_model_config(target)
    if config.hidden_size != target_config.hidden_size:
        raise Incompatible(f"draft: hidden_size {config.hidden_size}, the target's is {target_config.hidden_size}")
    target_layers = target_config.num_hidden_layers
    if max(config.target_layer_ids) >= target_layers:
        raise Incompatible(f"draft: target_layer_ids {config.target_layer_ids}, the target has {target_layers} layers")
    embedding = checkpoint.load(_find(checkpoint, _EMBEDDING_NAMES))
    if not 0 <= config.mask_token_id < len(embedding):
        raise Incompatible(f"draft: mask_token_id {config.mask_token_id}, the target embeds {len(embedding)} ids")
    if target_config.tie_word_embeddings:
        return embedding, embedding
    return embedding, checkpoint.load(_find(checkpoint, _HEAD_NAMES))


def _find(checkpoint: Checkpoint, candidates: tuple[str, ...]) -> str:
    names = set(checkpoint.names())
    for name in candidates:
        if name in names:
            return name
    raise Incompatible(f"target: none of {', '.join(candidates)} is in the checkpoint")


def _weights(checkpoint: Checkpoint, config: DraftConfig, embedding: torch.Tensor, head: torch.Tensor) -> DraftWeights:
    layers = [f"layers.{index}" for index in range(config.num_hidden_layers)]
    keys_values = [f"{layer}.self_attn.{part}_proj" for layer in layers for part in "kv"]
    k_norms = [_head_norm(checkpoint, f"{layer}.self_attn.k_norm") for layer in layers]
    return DraftWeights(
        embedding=embedding,
        head=PackedLinear(head),
        fc=_linear(checkpoint, config, ["fc"]),
        hidden_norm=checkpoint.load("hidden_norm.weight"),
        context_kv=_linear(checkpoint, config, keys_values, bias=config.attention_bias),
        context_k_norm=torch.stack(k_norms)[:, None],
        layers=[_layer(checkpoint, config, index) for index in range(config.num_hidden_layers)],
        norm=checkpoint.load("norm.weight"),
    )


def _layer(checkpoint: Checkpoint, config: DraftConfig, index: int) -> DraftLayer:
    def linear(*names: str, bias: bool = False) -> PackedLinear:
        return _linear(checkpoint, config, [f"layers.{index}.{name}" for name in names], bias=bias)

    q_norm = _head_norm(checkpoint, f"layers.{index}.self_attn.q_norm").expand(config.num_attention_heads, -1)
    k_norm = _head_norm(checkpoint, f"layers.{index}.self_attn.k_norm").expand(config.num_key_value_heads, -1)
    is_sliding = config.layer_types[index] == "sliding_attention"
    bias = config.attention_bias
    return DraftLayer(
        input_norm=checkpoint.load(f"layers.{index}.input_layernorm.weight"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=bias),
        head_norm=torch.cat([q_norm, k_norm]),
        o=linear("self_attn.o_proj", bias=bias),
        post_attention_norm=checkpoint.load(f"layers.{index}.post_attention_layernorm.weight"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
        # Published models: sliding layers are causal inside the block unless the config says otherwise for all.
        is_causal=is_sliding if config.is_causal is None else config.is_causal,
        window=config.sliding_window if is_sliding else None,
    )


def _linear(checkpoint: Checkpoint, config: DraftConfig, names: list[str], *, bias: bool = False) -> PackedLinear:
    """Several linears of one input as one; rows of queries and keys go from halves to pairs."""

    def load(kind: str) -> torch.Tensor:
        parts = []
        for name in names:
            part = checkpoint.load(f"{name}.{kind}")
            is_rotated = name.endswith(("q_proj", "k_proj"))
            parts.append(halves_to_pairs(part, config.head_dim) if is_rotated else part)
        return torch.cat(parts)

    return PackedLinear(load("weight"), load("bias") if bias else None)


def _head_norm(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """q_norm or k_norm in pairs [D]."""
    weight = checkpoint.load(f"{name}.weight")
    return halves_to_pairs(weight, len(weight))


def _rotary(config: DraftConfig) -> RotaryTable:
    return RotaryTable(config.rope, config.head_dim, config.max_position_embeddings)
