"""config.json of a decoder-only language model, old and new spellings, as one frozen object."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.fields import Fields, positive_int, read_fields

_ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """parameters: what the kind needs, by the names of config.json (factor, beta_fast, …)."""

    theta: float
    kind: str = "default"
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches that every family shares."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    max_position_embeddings: int
    attention_bias: bool
    eos_token_ids: tuple[int, ...]


def load_model_config(folder: Path) -> ModelConfig:
    """Raises UnsupportedConfig naming the field that is missing, malformed or not implemented."""
    fields = load_text_fields(folder)
    # Drafts may have sliding layers, so this is not in `model_config`.
    if fields.get("use_sliding_window"):
        raise UnsupportedConfig("config.json: use_sliding_window: not implemented for a target")
    generation = folder / "generation_config.json"
    return model_config(fields, read_fields(generation) if generation.is_file() else {})


def load_text_fields(folder: Path) -> Fields:
    """config.json, or of a model that sees more than text what it says of its language model.

    The model type stays that of the whole, because it decides how tensors are named.
    """
    fields = read_fields(folder / "config.json")
    text = fields.get("text_config")
    if text is None:
        return fields
    if not isinstance(text, dict):
        raise UnsupportedConfig("config.json: text_config: not an object")
    outer = {name: fields[name] for name in ("eos_token_id", "quantization_config") if name in fields}
    return {**outer, **text, "model_type": fields.get("model_type", "")}


def model_config(fields: Fields, generation: Fields) -> ModelConfig:
    """From the objects of config.json and generation_config.json."""
    _check_supported(fields)
    heads = positive_int(fields, "num_attention_heads")
    hidden = positive_int(fields, "hidden_size")
    model_type = str(fields.get("model_type", ""))
    kv_heads = positive_int(fields, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise UnsupportedConfig(f"config.json: num_attention_heads: {heads} is no multiple of {kv_heads} KV heads")
    # Latent attention gives the size of the rotated part only; its heads have parts of their own sizes.
    head_dim = positive_int(fields, "head_dim", fields.get("qk_rope_head_dim") or hidden // heads)
    if head_dim % 2:
        raise UnsupportedConfig(f"config.json: head_dim: {head_dim} is odd")
    return ModelConfig(
        model_type=model_type,
        vocab_size=positive_int(fields, "vocab_size"),
        hidden_size=hidden,
        num_hidden_layers=positive_int(fields, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=positive_int(fields, "intermediate_size"),
        rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        rope=rope_config(fields),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        max_position_embeddings=positive_int(fields, "max_position_embeddings"),
        attention_bias=bool(fields.get("attention_bias", False)),
        eos_token_ids=_eos_token_ids(fields, generation),
    )


def rope_config(fields: Fields) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UnsupportedConfig("config.json: rope_parameters: not an object")
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if kind not in _ROPE_KINDS:
        raise UnsupportedConfig(f"config.json: rope_type: {kind!r} is not one of {', '.join(_ROPE_KINDS)}")
    if rope.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedConfig("config.json: partial_rotary_factor: only 1.0 is implemented")
    parameters = {
        name: value for name, value in rope.items() if isinstance(value, int | float) and name != "rope_theta"
    }
    if kind in ("llama3", "yarn"):
        parameters.setdefault("original_max_position_embeddings", positive_int(fields, "max_position_embeddings"))
    if kind == "yarn" and "factor" not in parameters:
        original = parameters["original_max_position_embeddings"]
        parameters["factor"] = positive_int(fields, "max_position_embeddings") / original
    _check_rope(kind, parameters)
    theta = rope.get("rope_theta", fields.get("rope_theta"))
    return RopeConfig(theta=10000.0 if theta is None else float(theta), kind=kind, parameters=parameters)


def tokenizer_fingerprint(folder: Path) -> str:
    """SHA-256 of tokenizer.json in hexadecimal; "" when there is none."""
    path = folder / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _check_supported(fields: Fields) -> None:
    if fields.get("hidden_act", "silu") != "silu":
        raise UnsupportedConfig(f"config.json: hidden_act: {fields['hidden_act']!r} is not implemented, only silu")
    if fields.get("mlp_bias"):
        raise UnsupportedConfig("config.json: mlp_bias: not implemented")


def _check_rope(kind: str, parameters: Mapping[str, float]) -> None:
    needed = {
        "default": (),
        "linear": ("factor",),
        "yarn": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
    for name in needed[kind]:
        if name not in parameters:
            raise UnsupportedConfig(f"config.json: rope_parameters: {kind} needs {name}")


def _eos_token_ids(fields: Fields, generation: Fields) -> tuple[int, ...]:
    """Both files count: chat models end turns with an id that only generation_config.json names."""
    ids: list[int] = []
    for source in (fields.get("eos_token_id"), generation.get("eos_token_id")):
        ids += [] if source is None else source if isinstance(source, list) else [source]
    return tuple(dict.fromkeys(ids))
