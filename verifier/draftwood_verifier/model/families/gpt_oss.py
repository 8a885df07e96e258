"""gpt-oss: attention with sinks, a window in every other layer, experts with biases and a clamped gate.

Source: transformers' modeling_gpt_oss.
"""

from dataclasses import replace

import torch

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.fields import Fields, positive_int
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_checkpoint.mxfp4 import GROUP
from draftwood_checkpoint.quantization import quantization
from draftwood_verifier.model.attention import load_attention
from draftwood_verifier.model.experts import ExpertLinears, Experts, place_experts
from draftwood_verifier.model.family import Blueprint, Family, joined
from draftwood_verifier.model.layer import DecoderLayer
from draftwood_verifier.model.moe import MixtureOfExperts, SoftmaxRouter
from draftwood_verifier.model.weights import Part, WeightReader
from draftwood_verifier.parallel.experts import held_experts

_LIMIT, _SLOPE = 7.0, 1.702


def _blueprint(config: ModelConfig, fields: Fields) -> Blueprint:
    experts, experts_a_row = positive_int(fields, "num_local_experts"), positive_int(fields, "num_experts_per_tok")
    windows = _windows(config, fields)
    _check_groups(config, fields)

    def load_layer(reader: WeightReader, index: int) -> DecoderLayer:
        reader.refuse_row_invariance("attention with sinks")
        heads = config.num_attention_heads
        attention = replace(
            load_attention(reader.under("self_attn."), config, qk_norm=False),
            sinks=reader.tensor("self_attn.sinks", heads)[reader.share.heads(heads)],
            window=windows[index],
        )
        router = SoftmaxRouter(
            reader.linear([Part(name="mlp.router", rows=experts, bias=True)], config.hidden_size),
            experts_a_row,
            # Of the chosen alone: what their softmax would be.
            normalize=True,
        )
        mixture = MixtureOfExperts(router, _load_experts(reader, config, experts))
        return joined(reader, config, attention, reader.share.summed(mixture))

    return Blueprint(
        config=config,
        load_layer=load_layer,
        cache_row=(2 * config.num_key_value_heads, config.head_dim),
        kv_heads=config.num_key_value_heads,
        rotary_dim=config.head_dim,
    )


def _windows(config: ModelConfig, fields: Fields) -> list[int | None]:
    layers = config.num_hidden_layers
    types = fields.get("layer_types") or ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedConfig(f"config.json: layer_types: need {layers} of full_attention, sliding_attention")
    return [positive_int(fields, "sliding_window") if kind == "sliding_attention" else None for kind in types]


def _check_groups(config: ModelConfig, fields: Fields) -> None:
    for name, size in (("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size)):
        if quantization(fields).is_mxfp4 and size % GROUP:
            raise UnsupportedConfig(f"config.json: {name}: {size} is no multiple of the {GROUP} numbers of a group")


def _load_experts(reader: WeightReader, config: ModelConfig, experts: int) -> Experts:
    hidden, intermediate, stacks = config.hidden_size, config.intermediate_size, reader.under("mlp.experts.")
    gate_up, down = (experts, 2 * intermediate, hidden), (experts, hidden, intermediate)
    held = held_experts(reader.share, experts)
    linears = ExpertLinears(
        gate_up=(stacks.stacked("gate_up_proj", expert, gate_up, _gates_first) for expert in held),
        down=(stacks.stacked("down_proj", expert, down) for expert in held),
        hidden=hidden,
        intermediate=intermediate,
        gated=_clamped_gate,
    )
    return place_experts(reader.placement, held, linears)


def _gates_first(rows: torch.Tensor) -> torch.Tensor:
    """Gates and ups come by turns."""
    return torch.cat([rows[::2], rows[1::2]])


def _clamped_gate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
    return (up + 1) * gate * torch.sigmoid(gate * _SLOPE)


FAMILY = Family(model_types=("gpt_oss",), blueprint=_blueprint)
