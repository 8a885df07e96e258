"""Qwen3 with a mixture of experts in all or some layers.

Source: transformers' modeling_qwen3_moe.
"""

from draftwood_checkpoint.fields import Fields, positive_int
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_verifier.model.family import Blueprint, Family, grouped_query_blueprint
from draftwood_verifier.model.layer import Mlp
from draftwood_verifier.model.mlp import load_mlp
from draftwood_verifier.model.moe import MixtureOfExperts, SoftmaxRouter, load_experts
from draftwood_verifier.model.weights import Part, WeightReader


def _blueprint(config: ModelConfig, fields: Fields) -> Blueprint:
    experts = positive_int(fields, "num_experts", fields.get("num_local_experts"))
    experts_a_row = positive_int(fields, "num_experts_per_tok")
    intermediate = positive_int(fields, "moe_intermediate_size")
    normalize = bool(fields.get("norm_topk_prob", False))
    sparse_step = positive_int(fields, "decoder_sparse_step", 1)
    dense_layers = fields.get("mlp_only_layers") or []

    def load_mlp_of(reader: WeightReader, index: int) -> Mlp:
        if index in dense_layers or (index + 1) % sparse_step:
            return load_mlp(reader, config.hidden_size, config.intermediate_size)
        gate = reader.linear([Part(name="gate", rows=experts)], config.hidden_size)
        router = SoftmaxRouter(gate, experts_a_row, normalize=normalize)
        held = load_experts(reader, experts, config.hidden_size, intermediate)
        return reader.share.summed(MixtureOfExperts(router, held))

    return grouped_query_blueprint(config, qk_norm=True, load_mlp_of=load_mlp_of)


FAMILY = Family(model_types=("qwen3_moe",), blueprint=_blueprint)
