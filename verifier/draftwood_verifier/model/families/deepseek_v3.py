"""DeepSeek-V3 and Kimi-K2: latent attention, a few dense layers, then experts beside shared ones.

Source: transformers' modeling_deepseek_v3; Kimi-K2 is the same architecture under its own model type.
"""

import math
from collections.abc import Callable

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.fields import Fields, positive_int
from draftwood_checkpoint.model_config import ModelConfig, RopeConfig
from draftwood_kernels.linear import PackedLinear
from draftwood_verifier.model.family import Blueprint, Family, joined
from draftwood_verifier.model.latent_attention import LatentConfig, load_latent_attention
from draftwood_verifier.model.layer import DecoderLayer, Mlp
from draftwood_verifier.model.mlp import load_mlp, load_partial_mlp
from draftwood_verifier.model.moe import MixtureOfExperts, SigmoidRouter, load_experts
from draftwood_verifier.model.weights import WeightReader


def blueprint(config: ModelConfig, fields: Fields) -> Blueprint:
    attention = _attention(config, fields)
    dense_layers = int(fields.get("first_k_dense_replace") or 0)
    load_moe = _moe_loader(config, fields) if dense_layers < config.num_hidden_layers else None

    def load_layer(reader: WeightReader, index: int) -> DecoderLayer:
        mlps = reader.under("mlp.")
        if index < dense_layers or load_moe is None:
            mlp: Mlp = load_mlp(mlps, config.hidden_size, config.intermediate_size)
        else:
            mlp = load_moe(mlps)
        return joined(reader, config, load_latent_attention(reader.under("self_attn."), attention), mlp)

    return Blueprint(
        config=config,
        load_layer=load_layer,
        cache_row=(1, attention.kv_rank + attention.rotated),
        kv_heads=1,
        rotary_dim=attention.rotated,
        # Layers behind the last predict further tokens, which drafts do here.
        ignored=tuple(
            f"model.layers.{config.num_hidden_layers + extra}."
            for extra in range(int(fields.get("num_nextn_predict_layers") or 0))
        ),
    )


def _attention(config: ModelConfig, fields: Fields) -> LatentConfig:
    rotated, unrotated = positive_int(fields, "qk_rope_head_dim"), positive_int(fields, "qk_nope_head_dim")
    for name, size in (("qk_rope_head_dim", rotated), ("qk_nope_head_dim", unrotated)):
        if size % 2:
            raise UnsupportedConfig(f"config.json: {name}: {size} is odd")
    return LatentConfig(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        query_rank=None if fields.get("q_lora_rank") is None else positive_int(fields, "q_lora_rank"),
        kv_rank=positive_int(fields, "kv_lora_rank"),
        unrotated=unrotated,
        rotated=rotated,
        values=positive_int(fields, "v_head_dim"),
        bias=config.attention_bias,
        interleaved=bool(fields.get("rope_interleave", True)),
        scale=(unrotated + rotated) ** -0.5 * _stretch(config.rope) ** 2,
    )


def _stretch(rope: RopeConfig) -> float:
    """What a longer context makes of queries and keys, beside the factor on cos and sin that the rope has itself."""
    weight, factor = rope.parameters.get("mscale_all_dim", 0.0), rope.parameters.get("factor", 1.0)
    if rope.kind == "default" or not weight or factor <= 1:
        return 1.0
    return 0.1 * weight * math.log(factor) + 1.0


def _moe_loader(config: ModelConfig, fields: Fields) -> Callable[[WeightReader], Mlp]:
    _check_router(fields)
    hidden, intermediate = config.hidden_size, positive_int(fields, "moe_intermediate_size")
    experts = positive_int(fields, "n_routed_experts", fields.get("num_local_experts"))
    experts_a_row = positive_int(fields, "num_experts_per_tok")
    groups = positive_int(fields, "n_group", 1)
    groups_a_row = positive_int(fields, "topk_group", groups)
    shared = int(fields.get("n_shared_experts") or 0)
    if experts % groups or groups_a_row > groups:
        raise UnsupportedConfig(
            f"config.json: n_group: {experts} experts in {groups} groups of which {groups_a_row} compete"
        )

    def load(reader: WeightReader) -> Mlp:
        router = SigmoidRouter(
            # A bias is large beside the differences that it decides: bfloat16 would send rows elsewhere.
            gate=PackedLinear(
                reader.matrix("gate", experts, hidden).float(), row_invariant=reader.placement.row_invariant
            ),
            bias=reader.exact("gate.e_score_correction_bias", experts),
            experts_a_row=experts_a_row,
            groups=groups,
            groups_a_row=groups_a_row,
            normalize=bool(fields.get("norm_topk_prob", True)),
            scale=float(fields.get("routed_scaling_factor", 1.0)),
        )
        held = load_experts(reader, experts, hidden, intermediate)
        common = load_partial_mlp(reader.under("shared_experts."), hidden, shared * intermediate) if shared else None
        return reader.share.summed(MixtureOfExperts(router, held, common))

    return load


def _check_router(fields: Fields) -> None:
    for name, value in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if fields.get(name, value) != value:
            raise UnsupportedConfig(f"config.json: {name}: {fields[name]!r} is not implemented, only {value}")


FAMILY = Family(model_types=("deepseek_v3", "kimi_k2"), blueprint=blueprint)
