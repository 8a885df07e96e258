"""Kimi-K2 as it is published, without its numbers: config, index and headers; the files behind them are holes."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "kimi_k2",
    "vocab_size": 163840,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "tie_word_embeddings": False,
    "eos_token_id": 163586,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
# A draft of the published form for it.
DRAFT: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 163840,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 6,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "num_target_layers": 61,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 163838, "target_layer_ids": [1, 12, 24, 35, 47, 58]},
}
_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
Entries = Iterator[tuple[str, str, list[int]]]


def write_kimi_k2(folder: Path, layers: int = CONFIG["num_hidden_layers"]) -> tuple[Path, Path]:
    """Of the target the first `layers` layers."""
    target, draft = folder / "target", folder / "draft"
    for each, config in ((target, {**CONFIG, "num_hidden_layers": layers}), (draft, DRAFT)):
        each.mkdir()
        (each / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    shards = {f"model-{index}.safetensors": list(_layer(index)) for index in range(layers)}
    shards["model-rest.safetensors"] = list(_rest())
    for name, entries in shards.items():
        _write_holes(target / name, entries)
        weight_map |= dict.fromkeys((entry[0] for entry in entries), name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _write_holes(draft / "model.safetensors", list(_draft()))
    return target, draft


def _write_holes(path: Path, entries: list[tuple[str, str, list[int]]]) -> None:
    header, end = {}, 0
    for name, kind, shape in entries:
        size = _BYTES[kind]
        for count in shape:
            size *= count
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def _rest() -> Entries:
    for name in ("model.embed_tokens", "lm_head"):
        yield f"{name}.weight", "BF16", [163840, 7168]
    yield "model.norm.weight", "BF16", [7168]


def _layer(index: int) -> Entries:
    at = f"model.layers.{index}"
    for norm, width in (
        ("input_layernorm", 7168),
        ("post_attention_layernorm", 7168),
        ("self_attn.q_a_layernorm", 1536),
        ("self_attn.kv_a_layernorm", 512),
    ):
        yield f"{at}.{norm}.weight", "BF16", [width]
    for name, rows, columns in (
        ("q_a_proj", 1536, 7168),
        ("q_b_proj", 64 * 192, 1536),
        ("kv_a_proj_with_mqa", 576, 7168),
        ("kv_b_proj", 64 * 256, 512),
        ("o_proj", 7168, 64 * 128),
    ):
        yield from _fp8(f"{at}.self_attn.{name}", rows, columns)
    if index == 0:
        yield from _mlp(f"{at}.mlp", 18432)
        return
    yield f"{at}.mlp.gate.weight", "BF16", [384, 7168]
    yield f"{at}.mlp.gate.e_score_correction_bias", "F32", [384]
    for mlp in ("shared_experts", *(f"experts.{expert}" for expert in range(384))):
        yield from _mlp(f"{at}.mlp.{mlp}", 2048)


def _mlp(at: str, inner: int) -> Entries:
    yield from _fp8(f"{at}.gate_proj", inner, 7168)
    yield from _fp8(f"{at}.up_proj", inner, 7168)
    yield from _fp8(f"{at}.down_proj", 7168, inner)


def _fp8(name: str, rows: int, columns: int) -> Entries:
    yield f"{name}.weight", "F8_E4M3", [rows, columns]
    yield f"{name}.weight_scale_inv", "F32", [-(-rows // 128), -(-columns // 128)]


def _draft() -> Entries:
    yield "fc.weight", "BF16", [7168, 6 * 7168]
    for name in ("hidden_norm", "norm"):
        yield f"{name}.weight", "BF16", [7168]
    for index in range(DRAFT["num_hidden_layers"]):
        at = f"layers.{index}"
        for name, shape in (
            ("input_layernorm", [7168]),
            ("post_attention_layernorm", [7168]),
            ("self_attn.q_norm", [128]),
            ("self_attn.k_norm", [128]),
            ("self_attn.q_proj", [64 * 128, 7168]),
            ("self_attn.k_proj", [8 * 128, 7168]),
            ("self_attn.v_proj", [8 * 128, 7168]),
            ("self_attn.o_proj", [7168, 64 * 128]),
            ("mlp.gate_proj", [18432, 7168]),
            ("mlp.up_proj", [18432, 7168]),
            ("mlp.down_proj", [7168, 18432]),
        ):
            yield f"{at}.{name}.weight", "BF16", shape
