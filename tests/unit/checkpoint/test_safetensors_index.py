"""Checkpoints read only what is asked for, and say what is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood_checkpoint.errors import CheckpointError, MissingTensor, WrongShape
from draftwood_checkpoint.safetensors_index import Checkpoint

INDEX = "model.safetensors.index.json"


def write_sharded(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {name: torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("abc")}
    files = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    return tensors


def test_a_single_file(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert sorted(checkpoint.names()) == ["half", "x"]
    assert checkpoint.shape("x") == (2, 3)
    assert torch.equal(checkpoint.load("x", (2, 3)), tensors["x"])
    assert checkpoint.load("half").dtype == torch.float32


def test_shards(tmp_path: Path) -> None:
    tensors = write_sharded(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    assert sorted(checkpoint.names()) == ["a", "b", "c"]
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.load(name), tensor)


def test_only_asked_tensors_are_read(tmp_path: Path) -> None:
    """A shard that is not there hurts only who asks for it."""
    tensors = write_sharded(tmp_path)
    (tmp_path / "two.safetensors").unlink()
    checkpoint = Checkpoint(tmp_path)
    assert torch.equal(checkpoint.load("a"), tensors["a"])
    assert checkpoint.shape("b") == (3, 4)
    with pytest.raises(MissingTensor, match=r"^c: the index says two\.safetensors"):
        checkpoint.load("c")


def test_errors_name_the_tensor(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(MissingTensor, match=r"^d: not in the checkpoint"):
        checkpoint.load("d")
    with pytest.raises(WrongShape, match=r"^a: has shape \[3, 4\], config\.json implies \[4, 3\]"):
        checkpoint.load("a", (4, 3))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"z": "one.safetensors"}}))
    with pytest.raises(MissingTensor, match=r"^z: the index says one"):
        Checkpoint(tmp_path).load("z")


def test_folders_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        Checkpoint(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        Checkpoint(tmp_path)
