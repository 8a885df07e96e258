"""config.json of a DFlash draft in the published format."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.fields import Fields, positive_int, read_fields
from draftwood_checkpoint.model_config import ModelConfig, model_config

_LAYER_TYPES = ("full_attention", "sliding_attention")
# Fields of variants with other arithmetic (DFlash2, DSpark, Domino, ...), and what they may say all the same.
_FOREIGN_FIELDS: dict[str, Any] = {
    "attention_sink_bias": False,
    "attention_value_scale": 1.0,
    "conv_group_size": 0,
    "conv_kernel_size": 0,
    "draft_vocab_size": None,
    "emb_dim": 0,
    "gru_hidden_dim": 0,
    "projector_type": "dflash",
    "pure_draft_prefix_len": 0,
    "sample_from_anchor": False,
    "selector_rank": 0,
    "selector_top_k": 0,
    "shift_label": False,
}


@dataclass(frozen=True, kw_only=True)
class DraftConfig(ModelConfig):
    """is_causal overrides every layer's own rule when set; sliding_window counts positions.

    input_embedding_scale: on embeddings before the first layer. Logits are multiplied by output_multiplier, then, if
    there is a final_logit_softcapping c, become c * tanh(logits / c).
    """

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None


def load_draft_config(folder: Path) -> DraftConfig:
    """Raises UnsupportedConfig naming the field. What dflash_config nests wins over the top level."""
    top = read_fields(folder / "config.json")
    nested = top.get("dflash_config") or {}
    if not isinstance(nested, dict):
        raise UnsupportedConfig("config.json: dflash_config: not an object")
    merged = {**top, **nested}
    _refuse_variants(merged)
    base = model_config(top, {})
    shared = {field.name: getattr(base, field.name) for field in fields(ModelConfig)}
    layer_types = _layer_types(top, base.num_hidden_layers)
    return DraftConfig(
        **shared,
        block_size=positive_int(merged, "block_size"),
        mask_token_id=_mask_token_id(merged),
        target_layer_ids=_target_layer_ids(merged),
        num_target_layers=positive_int(merged, "num_target_layers"),
        layer_types=layer_types,
        sliding_window=positive_int(top, "sliding_window") if "sliding_attention" in layer_types else None,
        is_causal=_is_causal(merged),
        input_embedding_scale=_factor(merged, "input_embedding_scale"),
        output_multiplier=_factor(merged, "output_multiplier"),
        final_logit_softcapping=_softcap(merged),
    )


def _refuse_variants(merged: Fields) -> None:
    for name, harmless in _FOREIGN_FIELDS.items():
        value = merged.get(name)
        if value is not None and value != harmless:
            raise UnsupportedConfig(f"config.json: {name}: {value!r} is of a variant of DFlash that is not implemented")


def _factor(merged: Fields, name: str) -> float:
    value = merged.get(name)
    if value is None:
        return 1.0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UnsupportedConfig(f"config.json: {name}: {value!r} is not a positive number")
    return float(value)


def _softcap(merged: Fields) -> float | None:
    """The published code takes 0 for none."""
    value = merged.get("final_logit_softcapping")
    return _factor(merged, "final_logit_softcapping") if value else None


def _mask_token_id(merged: Fields) -> int:
    value = merged.get("mask_token_id")
    if not isinstance(value, int) or value < 0:
        raise UnsupportedConfig(f"config.json: mask_token_id: {value!r} is not a token id")
    return value


def _target_layer_ids(merged: Fields) -> tuple[int, ...]:
    ids = merged.get("target_layer_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) and i >= 0 for i in ids):
        raise UnsupportedConfig(f"config.json: target_layer_ids: {ids!r} is not a list of layer indices")
    return tuple(ids)


def _layer_types(top: Fields, layers: int) -> tuple[str, ...]:
    types = top.get("layer_types") or ["full_attention"] * layers
    if not isinstance(types, list) or len(types) != layers or not set(types) <= set(_LAYER_TYPES):
        raise UnsupportedConfig(f"config.json: layer_types: need {layers} of {', '.join(_LAYER_TYPES)}")
    return tuple(types)


def _is_causal(merged: Fields) -> bool | None:
    value = merged.get("is_causal")
    if not (value is None or isinstance(value, bool)):
        raise UnsupportedConfig(f"config.json: is_causal: {value!r} is not a boolean")
    return value
