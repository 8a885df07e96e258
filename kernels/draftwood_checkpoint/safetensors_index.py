"""Tensors of a folder of safetensors files, read one by one when asked for."""

import json
from pathlib import Path

import torch
from safetensors import safe_open

from draftwood_checkpoint.errors import CheckpointError, MissingTensor, WrongShape

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Checkpoint:
    """The names come from the index, or from the header of a single file; nothing else is read at first."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError when the folder holds neither an index nor a model.safetensors."""
        self._folder = folder
        self._files = _files(folder)

    def names(self) -> list[str]:
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        with safe_open(self._file(name), framework="pt") as tensors:
            return tuple(tensors.get_slice(name).get_shape())

    def load(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        *,
        rows: slice | None = None,
        columns: slice | None = None,
    ) -> torch.Tensor:
        """The tensor, or some rows and columns of it, as float32. `shape` is that of the whole tensor.

        Raises MissingTensor, or WrongShape when `shape` is given and differs.
        """
        with safe_open(self._file(name), framework="pt") as tensors:
            if name not in set(tensors.keys()):
                raise MissingTensor(f"{name}: the index says {self._files[name]}, which does not hold it")
            found = tuple(tensors.get_slice(name).get_shape())
            if shape is not None and found != shape:
                raise WrongShape(f"{name}: has shape {list(found)}, config.json implies {list(shape)}")
            if rows is None and columns is None:
                tensor: torch.Tensor = tensors.get_tensor(name)
            else:
                everything = slice(None)
                index = (rows or everything, columns or everything)
                tensor = tensors.get_slice(name)[index[: len(found)]]
        return tensor.to(torch.float32)

    def _file(self, name: str) -> Path:
        if name not in self._files:
            raise MissingTensor(f"{name}: not in the checkpoint at {self._folder}")
        path = self._folder / self._files[name]
        if not path.is_file():
            raise MissingTensor(f"{name}: the index says {self._files[name]}, which is not there")
        return path


def _files(folder: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    index = folder / _INDEX
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index}: has no weight_map")
        return {str(name): str(file) for name, file in weight_map.items()}
    if (folder / _SINGLE).is_file():
        with safe_open(folder / _SINGLE, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), _SINGLE)
    raise CheckpointError(f"{folder}: neither {_INDEX} nor {_SINGLE} is there")
