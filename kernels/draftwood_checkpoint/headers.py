"""A checkpoint of which only the headers are read: to see what a load would give, and whether it would end well."""

import torch

from draftwood_checkpoint.safetensors_file import SafetensorsFile
from draftwood_checkpoint.safetensors_index import Checkpoint


class CheckpointHeaders(Checkpoint):
    """Its tensors lie on the device `meta`: they have shapes and types, and no numbers.

    But for the shape that a packed weight states: without these two numbers nobody knows what its words hold.
    """

    def _numbers(self, file: SafetensorsFile, name: str, rows: slice | None, columns: slice | None) -> torch.Tensor:
        if name.endswith(".weight_shape"):
            with torch.device("cpu"):
                return file.read(name, rows, columns)
        whole = torch.empty(file.shape(name), dtype=file.dtype(name), device="meta")
        if rows is None and columns is None:
            return whole
        held = whole[rows or slice(None)]
        # A copy, as a read is one: a view would count as the whole.
        return held.clone() if columns is None else held.flatten(1)[:, columns].clone()
