"""Checkpoints that cannot be served say which tensor or field is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood_checkpoint.errors import MissingTensor, UnsupportedConfig, WrongShape
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
