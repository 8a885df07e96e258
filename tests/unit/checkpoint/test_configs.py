"""Old and new spellings of config.json, targets' and drafts'."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from draftwood_checkpoint.draft_config import load_draft_config
from draftwood_checkpoint.errors import CheckpointError, UnsupportedConfig
from draftwood_checkpoint.model_config import RopeConfig, load_model_config, tokenizer_fingerprint

TARGET: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 3,
}
DRAFT: dict[str, Any] = {
    **TARGET,
    "model_type": "qwen3",
    "num_target_layers": 12,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 99, "target_layer_ids": [1, 5, 9]},
}


def write(folder: Path, **fields: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_defaults(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **TARGET))
    assert (config.num_key_value_heads, config.head_dim, config.tie_word_embeddings) == (4, 16, False)
    assert config.rope == RopeConfig(theta=10000.0)
    assert (config.attention_bias, config.eos_token_ids) == (False, (3,))


def test_the_language_model_inside_a_model_that_sees(tmp_path: Path) -> None:
    inner = {**TARGET, "model_type": "kimi_k2", "tie_word_embeddings": False, "eos_token_id": 7}
    write(
        tmp_path, model_type="kimi_k25", text_config=inner, tie_word_embeddings=True, vision_config={"hidden_size": 9}
    )
    config = load_model_config(tmp_path)
    assert (config.model_type, config.hidden_size, config.eos_token_ids) == ("kimi_k25", 64, (7,))
    assert not config.tie_word_embeddings
    write(tmp_path, model_type="kimi_k25", text_config="inner")
    with pytest.raises(UnsupportedConfig, match="text_config: not an object"):
        load_model_config(tmp_path)


def test_the_head_size_of_latent_attention_is_its_rotated_part(tmp_path: Path) -> None:
    fields = {**TARGET, "hidden_size": 60, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
    assert load_model_config(write(tmp_path, **fields)).head_dim == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_rope_in_all_spellings(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = load_model_config(write(tmp_path, **TARGET, **fields))
    assert config.rope == RopeConfig(theta=5e5, kind="linear", parameters={"factor": 2.0})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": -1}, "hidden_size: -1"),
        ({"vocab_size": "many"}, "vocab_size: 'many'"),
        ({"num_key_value_heads": 3}, "num_attention_heads: 4"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedConfig, match=message):
        load_model_config(write(tmp_path, **{**TARGET, **fields}))


def test_unreadable_configs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not there"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_model_config(tmp_path)


def test_drafts_at_top_level_and_nested(tmp_path: Path) -> None:
    config = load_draft_config(write(tmp_path, **DRAFT))
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (8, 99, (1, 5, 9))
    assert (config.num_target_layers, config.is_causal, config.sliding_window) == (12, None, None)
    assert config.layer_types == ("full_attention", "full_attention")
    nested = {**DRAFT, "dflash_config": {**DRAFT["dflash_config"], "block_size": 16, "num_target_layers": 36}}
    del nested["block_size"], nested["num_target_layers"]
    config = load_draft_config(write(tmp_path, **nested))
    assert (config.block_size, config.num_target_layers) == (16, 36)


def test_scales_of_drafts(tmp_path: Path) -> None:
    config = load_draft_config(write(tmp_path, **DRAFT, final_logit_softcapping=0, sample_from_anchor=False))
    assert (config.input_embedding_scale, config.output_multiplier, config.final_logit_softcapping) == (1.0, 1.0, None)
    nested = {**DRAFT["dflash_config"], "output_multiplier": 2, "final_logit_softcapping": 30}
    config = load_draft_config(write(tmp_path, **{**DRAFT, "dflash_config": nested}, output_multiplier=3))
    assert (config.output_multiplier, config.final_logit_softcapping) == (2.0, 30.0)


def test_sliding_drafts(tmp_path: Path) -> None:
    fields = {**DRAFT, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32, "is_causal": False}
    config = load_draft_config(write(tmp_path, **fields, use_sliding_window=True))
    assert (config.layer_types[0], config.sliding_window, config.is_causal) == ("sliding_attention", 32, False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id: None"),
        ({"dflash_config": {"mask_token_id": 9, "target_layer_ids": []}}, r"target_layer_ids: \[\]"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"block_size": None}, "block_size: None"),
        ({"input_embedding_scale": 0}, "input_embedding_scale: 0"),
        ({"output_multiplier": "2"}, "output_multiplier: '2'"),
        ({"final_logit_softcapping": -3.0}, "final_logit_softcapping: -3.0"),
        ({"projector_type": "dspark"}, "projector_type: 'dspark' is of a variant"),
        ({"dflash_config": {**DRAFT["dflash_config"], "selector_rank": 256}}, "selector_rank: 256 is of a variant"),
        ({"sample_from_anchor": True}, "sample_from_anchor: True"),
    ],
)
def test_bad_drafts_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedConfig, match=message):
        load_draft_config(write(tmp_path, **{**DRAFT, **fields}))


def test_fingerprint(tmp_path: Path) -> None:
    assert tokenizer_fingerprint(tmp_path) == ""
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    assert tokenizer_fingerprint(tmp_path) == hashlib.sha256(b"{}").hexdigest()
