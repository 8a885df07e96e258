"""Checkpoints that cannot be served say which tensor or field is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood_checkpoint.errors import MissingTensor, UnexpectedTensor, UnsupportedConfig, WrongShape
from draftwood_verifier.runner import load_runner
from tests.unit.model.targets import write_target


def load(folder: Path) -> None:
    load_runner(folder, pages=4, page_size=4)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_norm.weight", "lm_head.weight", "model.norm.weight"])
def test_missing_and_misshapen_tensors_are_named(tmp_path: Path, name: str) -> None:
    folder = write_target("qwen3-untied", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(WrongShape, match=f"^{name}: has shape"):
        load(folder)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(MissingTensor, match=f"^{name}:"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"num_hidden_layers": None}, "num_hidden_layers: None"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type: 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "linear needs factor"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_unsupported_configs_name_the_field(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = write_target("qwen3-tied", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UnsupportedConfig, match=message):
        load(folder)


def test_end_ids_of_both_files(target: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_target("llama", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert set(load_runner(folder, pages=4, page_size=4).eos_token_ids) == {2, 7}
    assert load_runner(target("llama"), pages=4, page_size=4).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen3-moe", "model.layers.1.mlp.experts.8.up_proj.weight"),
        ("qwen3-moe", "model.layers.1.mlp.shared_expert.up_proj.weight"),
        ("deepseek", "model.layers.5.mlp.gate_proj.weight"),
        ("kimi-k25", "language_model.model.layers.0.self_attn.q_proj.weight"),
        ("kimi-k25", "audio_tower.conv.weight"),
    ],
)
def test_tensors_that_nobody_asked_for_are_named(variant: str, name: str, tmp_path: Path) -> None:
    folder = write_target(variant, tmp_path)
    add(folder, name)
    with pytest.raises(UnexpectedTensor, match=f"^{name}: is in the checkpoint"):
        load(folder)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("qwen3-tied", "lm_head.weight"),
        # What DeepSeek-V3 has behind its last layer, of which the config counts one.
        ("deepseek", "model.layers.4.eh_proj.weight"),
        ("kimi-k25", "vision_tower.patch_embed.more.weight"),
        ("kimi-k25", "mm_projector.more.weight"),
    ],
)
def test_what_is_left_out_on_purpose(variant: str, name: str, tmp_path: Path) -> None:
    folder = write_target(variant, tmp_path)
    add(folder, name)
    load(folder)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("qwen3-moe", "model.layers.3.mlp.experts.7.down_proj.weight"),
        ("qwen3-moe", "model.layers.0.mlp.gate.weight"),
        ("deepseek", "model.layers.2.mlp.gate.e_score_correction_bias"),
        ("deepseek", "model.layers.0.self_attn.kv_b_proj.weight"),
        ("deepseek", "model.layers.1.mlp.shared_experts.up_proj.weight"),
        ("kimi-k25", "language_model.model.layers.1.self_attn.kv_a_proj_with_mqa.weight"),
        ("kimi-k25", "language_model.lm_head.weight"),
    ],
)
def test_missing_parts_of_experts_and_latents_are_named(variant: str, name: str, tmp_path: Path) -> None:
    folder = write_target(variant, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.zeros(3, 3, 3)}, folder / "model.safetensors")
    with pytest.raises(WrongShape, match=f"^{name}: has shape"):
        load(folder)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(MissingTensor, match=f"^{name}: not in the checkpoint"):
        load(folder)


def add(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.zeros(3)}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("variant", "change", "message"),
    [
        ("deepseek", {"scoring_func": "softmax"}, "scoring_func: 'softmax'"),
        ("deepseek", {"topk_group": 5}, "n_group: 8 experts in 4 groups of which 5 compete"),
        ("deepseek", {"n_group": 3}, "n_group: 8 experts in 3 groups"),
        ("deepseek", {"kv_lora_rank": None}, "kv_lora_rank: None"),
        ("deepseek", {"qk_nope_head_dim": 15}, "qk_nope_head_dim: 15 is odd"),
        ("qwen3-moe", {"num_experts_per_tok": 0}, "num_experts_per_tok: 0"),
    ],
)
def test_unsupported_experts_and_latents_name_the_field(
    variant: str, change: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = write_target(variant, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UnsupportedConfig, match=f"^config.json: {message}"):
        load(folder)
