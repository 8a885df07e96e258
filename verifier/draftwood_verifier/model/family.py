"""What a model family has to say, and the layer that most of them share."""

from collections.abc import Callable
from dataclasses import dataclass

from draftwood_checkpoint.fields import Fields
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_verifier.model.attention import load_attention
from draftwood_verifier.model.layer import Attention, DecoderLayer, Mlp
from draftwood_verifier.model.mlp import load_mlp
from draftwood_verifier.model.weights import WeightReader

LoadLayer = Callable[[WeightReader, int], DecoderLayer]


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A target as config.json describes it, before any weight is read.

    load_layer: makes the layer of an index; its reader is already at the layer's own prefix.
    cache_row: heads and numbers a head of what a token leaves in the cache of a layer, all ranks together.
    kv_heads: the parts of it that ranks can hold apart; 1 where every rank needs all of it.
    rotary_dim: the rotated part of a head.
    prefix: of all tensors that belong to the language model.
    ignored: prefixes of tensors that are left out on purpose.
    """

    config: ModelConfig
    load_layer: LoadLayer
    cache_row: tuple[int, int]
    kv_heads: int
    rotary_dim: int
    prefix: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """blueprint: from the shared config and all of config.json's fields; raises UnsupportedConfig naming the field."""

    model_types: tuple[str, ...]
    blueprint: Callable[[ModelConfig, Fields], Blueprint]


def grouped_query_blueprint(
    config: ModelConfig, *, qk_norm: bool, load_mlp_of: Callable[[WeightReader, int], Mlp] | None = None
) -> Blueprint:
    """Grouped-query attention, and the MLPs that `load_mlp_of` makes for an index; gated dense ones without it."""

    def load_layer(reader: WeightReader, index: int) -> DecoderLayer:
        attention = load_attention(reader.under("self_attn."), config, qk_norm=qk_norm)
        mlps = reader.under("mlp.")
        if load_mlp_of is None:
            return joined(reader, config, attention, load_mlp(mlps, config.hidden_size, config.intermediate_size))
        return joined(reader, config, attention, load_mlp_of(mlps, index))

    return Blueprint(
        config=config,
        load_layer=load_layer,
        cache_row=(2 * config.num_key_value_heads, config.head_dim),
        kv_heads=config.num_key_value_heads,
        rotary_dim=config.head_dim,
    )


def joined(reader: WeightReader, config: ModelConfig, attention: Attention, mlp: Mlp) -> DecoderLayer:
    """The parts with the two norms that every family names alike."""
    return DecoderLayer(
        input_norm=reader.tensor("input_layernorm.weight", config.hidden_size),
        attention=attention,
        post_attention_norm=reader.tensor("post_attention_layernorm.weight", config.hidden_size),
        mlp=mlp,
    )
