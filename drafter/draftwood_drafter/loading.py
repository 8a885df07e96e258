"""A draft checkpoint in the published format, completed with the target's embedding and head, as a DraftModel.

Of the target only the tensors used here are read: a drafter's machine need not hold the target.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from draftwood_checkpoint.draft_config import DraftConfig, load_draft_config
from draftwood_checkpoint.model_config import ModelConfig, load_model_config
from draftwood_checkpoint.safetensors_index import Checkpoint
from draftwood_drafter.model import DraftLayer, DraftModel, DraftWeights
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.rotary import RotaryTable, halves_to_pairs
from draftwood_wire.errors import Incompatible

# Where families keep the tensors that the draft borrows, the usual place first.
_EMBEDDING_NAMES = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)
_HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
# A buffer that some checkpoints keep and that follows from config.json.
_REDUNDANT = ".rotary_emb.inv_freq"


def load_draft_model(
    target: Path,
    draft: Path,
    *,
    with_head: bool = True,
    placement: Placement = CPU,
    open_checkpoint: Callable[[Path], Checkpoint] = Checkpoint,
) -> DraftModel:
    """Without the head, the verifier has to turn hidden states into trees.

    Raises Incompatible when the draft does not fit the target, and the checkpoint's own errors.
    """
    config = load_draft_config(draft)
    tensors = _Tensors(open_checkpoint(draft), placement)
    borrowed = _borrow(target, open_checkpoint(target), config, with_head, placement)
    weights = _weights(tensors, config, *borrowed)
    tensors.check_all_asked()
    rotary = RotaryTable(config.rope, config.head_dim, config.max_position_embeddings, placement.device)
    return DraftModel(config, weights, rotary, placement)


class _Tensors:
    """The draft's own; knows which were asked for."""

    def __init__(self, checkpoint: Checkpoint, placement: Placement) -> None:
        self._checkpoint = checkpoint
        self._placement = placement
        self._asked: set[str] = set()

    def load(self, name: str, *shape: int) -> torch.Tensor:
        self._asked.add(name)
        return self._placement.place(self._checkpoint.load(name, shape))

    def check_all_asked(self) -> None:
        """Variants with other arithmetic (DFlash2, DSpark, ...) are known by what they have more."""
        for name in self._checkpoint.names():
            if name not in self._asked and not name.endswith(_REDUNDANT):
                raise Incompatible(
                    f"draft: {name} belongs to a variant of DFlash that is not supported: served without it, "
                    "the draft would not be the one that was trained"
                )


def _borrow(
    target: Path, checkpoint: Checkpoint, config: DraftConfig, with_head: bool, placement: Placement
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The target's embedding and, if wanted, its head, both [V, E]; one tensor when they are tied."""
    target_config = load_model_config(target)
    _check_fit(config, target_config)
    shape = target_config.vocab_size, target_config.hidden_size
    embedding = placement.place(checkpoint.load(_find(checkpoint, _EMBEDDING_NAMES), shape))
    if not with_head:
        _check_plain_head(config)
        return embedding, None
    if target_config.tie_word_embeddings:
        return embedding, embedding
    return embedding, placement.place(checkpoint.load(_find(checkpoint, _HEAD_NAMES), shape))


def _check_plain_head(config: DraftConfig) -> None:
    """The verifier multiplies by the head and does nothing more."""
    for name, value, usual in (
        ("output_multiplier", config.output_multiplier, 1),
        ("final_logit_softcapping", config.final_logit_softcapping, None),
    ):
        if value != usual:
            raise Incompatible(f"draft: {name} {value} is applied behind the head: keep the head on the drafter")


def _check_fit(config: DraftConfig, target: ModelConfig) -> None:
    for name, ours, theirs in (
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("num_target_layers", config.num_target_layers, target.num_hidden_layers),
    ):
        if ours != theirs:
            raise Incompatible(f"draft: {name} {ours}, the target's is {theirs}: the draft is for another target")
    ids = config.target_layer_ids
    if max(ids) >= target.num_hidden_layers:
        raise Incompatible(f"draft: target_layer_ids {ids}, the target has {target.num_hidden_layers} layers")
    if len(set(ids)) < len(ids):
        raise Incompatible(f"draft: target_layer_ids {ids} names a layer twice")
    if config.mask_token_id >= target.vocab_size:
        raise Incompatible(f"draft: mask_token_id {config.mask_token_id}, the target embeds {target.vocab_size} ids")
    if config.block_size < 2:
        raise Incompatible(f"draft: block_size {config.block_size} leaves no token to draft beside the root")


def _find(checkpoint: Checkpoint, candidates: tuple[str, ...]) -> str:
    names = set(checkpoint.names())
    for name in candidates:
        if name in names:
            return name
    raise Incompatible(f"target: none of {', '.join(candidates)} is in the checkpoint")


def _weights(
    tensors: _Tensors, config: DraftConfig, embedding: torch.Tensor, head: torch.Tensor | None
) -> DraftWeights:
    hidden, layers = config.hidden_size, [f"layers.{index}" for index in range(config.num_hidden_layers)]
    rows = _rows(config)
    keys_values = {f"{layer}.self_attn.{part}": rows[part] for layer in layers for part in ("k_proj", "v_proj")}
    k_norms = [_head_norm(tensors, config, f"{layer}.self_attn.k_norm") for layer in layers]
    return DraftWeights(
        embedding=embedding,
        head=None if head is None else PackedLinear(head),
        fc=_linear(tensors, config, {"fc": hidden}, len(config.target_layer_ids) * hidden),
        hidden_norm=tensors.load("hidden_norm.weight", hidden),
        context_kv=_linear(tensors, config, keys_values, hidden, bias=config.attention_bias),
        context_k_norm=torch.stack(k_norms)[:, None],
        layers=[_layer(tensors, config, index) for index in range(config.num_hidden_layers)],
        norm=tensors.load("norm.weight", hidden),
    )


def _layer(tensors: _Tensors, config: DraftConfig, index: int) -> DraftLayer:
    at, rows, hidden, inner = f"layers.{index}", _rows(config), config.hidden_size, config.intermediate_size
    q_norm = _head_norm(tensors, config, f"{at}.self_attn.q_norm").expand(config.num_attention_heads, -1)
    k_norm = _head_norm(tensors, config, f"{at}.self_attn.k_norm").expand(config.num_key_value_heads, -1)
    is_sliding = config.layer_types[index] == "sliding_attention"
    bias = config.attention_bias
    return DraftLayer(
        input_norm=tensors.load(f"{at}.input_layernorm.weight", hidden),
        qkv=_linear(tensors, config, {f"{at}.self_attn.{name}": rows[name] for name in rows}, hidden, bias=bias),
        head_norm=torch.cat([q_norm, k_norm]),
        o=_linear(tensors, config, {f"{at}.self_attn.o_proj": hidden}, rows["q_proj"], bias=bias),
        post_attention_norm=tensors.load(f"{at}.post_attention_layernorm.weight", hidden),
        gate_up=_linear(tensors, config, {f"{at}.mlp.{name}": inner for name in ("gate_proj", "up_proj")}, hidden),
        down=_linear(tensors, config, {f"{at}.mlp.down_proj": hidden}, inner),
        # Published models: sliding layers are causal inside the block unless the config says otherwise for all.
        is_causal=is_sliding if config.is_causal is None else config.is_causal,
        window=config.sliding_window if is_sliding else None,
    )


def _rows(config: DraftConfig) -> dict[str, int]:
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    return {"q_proj": queries, "k_proj": keys, "v_proj": keys}


def _linear(
    tensors: _Tensors, config: DraftConfig, rows: dict[str, int], columns: int, *, bias: bool = False
) -> PackedLinear:
    """Several linears of one input as one, by name and rows; rows of queries and keys go from halves to pairs."""

    def load(kind: str, *rest: int) -> torch.Tensor:
        parts = []
        for name, count in rows.items():
            part = tensors.load(f"{name}.{kind}", count, *rest)
            is_rotated = name.endswith(("q_proj", "k_proj"))
            parts.append(halves_to_pairs(part, config.head_dim) if is_rotated else part)
        return torch.cat(parts)

    return PackedLinear(load("weight", columns), load("bias") if bias else None)


def _head_norm(tensors: _Tensors, config: DraftConfig, name: str) -> torch.Tensor:
    """q_norm or k_norm in pairs [D]."""
    return halves_to_pairs(tensors.load(f"{name}.weight", config.head_dim), config.head_dim)
