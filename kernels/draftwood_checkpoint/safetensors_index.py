"""Tensors of a folder of safetensors files, read one by one when asked for."""

import json
import math
from pathlib import Path

import torch

from draftwood_checkpoint.errors import CheckpointError, MissingTensor, UnsupportedTensor, WrongShape
from draftwood_checkpoint.safetensors_file import SafetensorsFile

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Checkpoint:
    """Names come from the index, or from the header of a single file. A shard is opened when a tensor of it is needed;
    nothing of it stays in memory but its header."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError when the folder holds neither an index nor a model.safetensors."""
        self._folder = folder
        self._files = _files(folder)
        self._opened: dict[str, SafetensorsFile] = {}
        self._children: dict[str, list[str]] = {}
        for name in self._files:
            module, _, part = name.rpartition(".")
            self._children.setdefault(module, []).append(part)

    def names(self) -> list[str]:
        return list(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def children(self, module: str) -> list[str]:
        """What lies directly in a module: `weight`, `bias`, ...; sorted."""
        return sorted(self._children.get(module, []))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).shape(name)

    def dtype(self, name: str) -> torch.dtype:
        return self._file(name).dtype(name)

    def stored_bytes(self, name: str) -> int:
        """What the tensor takes in its file."""
        return math.prod(self.shape(name)) * self.dtype(name).itemsize

    def load(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        *,
        rows: slice | None = None,
        columns: slice | None = None,
    ) -> torch.Tensor:
        """The tensor, or some rows and columns of it, as float32. `shape` is that of the whole tensor.

        Raises what `read` raises, and UnsupportedTensor for numbers that mean nothing without a scale.
        """
        if self.dtype(name) not in _FLOATS:
            raise UnsupportedTensor(f"{name}: holds {self.dtype(name)}, a floating-point type was expected")
        return self.read(name, shape, rows=rows, columns=columns).to(torch.float32)

    def read(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        *,
        rows: slice | None = None,
        columns: slice | None = None,
    ) -> torch.Tensor:
        """`load` in the file's own dtype. Raises MissingTensor, or WrongShape when `shape` is given and differs."""
        file = self._file(name)
        if shape is not None and file.shape(name) != shape:
            raise WrongShape(f"{name}: has shape {list(file.shape(name))}, config.json implies {list(shape)}")
        return self._numbers(file, name, rows, columns)

    def _numbers(self, file: SafetensorsFile, name: str, rows: slice | None, columns: slice | None) -> torch.Tensor:
        return file.read(name, rows, columns)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            raise MissingTensor(f"{name}: not in the checkpoint at {self._folder}")
        file_name = self._files[name]
        path = self._folder / file_name
        if file_name not in self._opened:
            if not path.is_file():
                raise MissingTensor(f"{name}: the index says {file_name}, which is not there")
            self._opened[file_name] = SafetensorsFile(path)
        file = self._opened[file_name]
        if name not in file:
            raise MissingTensor(f"{name}: the index says {file_name}, which does not hold it")
        return file


def _files(folder: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    index = folder / _INDEX
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index}: has no weight_map")
        return {str(name): str(file) for name, file in weight_map.items()}
    if (folder / _SINGLE).is_file():
        return dict.fromkeys(SafetensorsFile(folder / _SINGLE).names(), _SINGLE)
    raise CheckpointError(f"{folder}: neither {_INDEX} nor {_SINGLE} is there")
