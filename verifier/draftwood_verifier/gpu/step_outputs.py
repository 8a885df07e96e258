"""What a step leaves for the host: every walk's path. Shapes: T walks, P places of a path, by the step's size."""

import numpy as np
import torch

from draftwood_kernels.walk_tree.kernel import WalkedPaths
from draftwood_verifier.gpu.packed_buffer import PackedBuffer
from draftwood_verifier.gpu.step_size import StepSize


class StepOutputs:
    def __init__(self, size: StepSize, device: torch.device) -> None:
        path = (np.int32, (size.walks, size.places))
        self._buffer = PackedBuffer({"nodes": path, "tokens": path, "lengths": (np.int32, (size.walks,))}, device)
        found = self._buffer.device
        self.paths = WalkedPaths(nodes=found["nodes"], tokens=found["tokens"], lengths=found["lengths"])

    def download(self) -> None:
        """Queue the copy to the host."""
        self._buffer.download()

    def read(self, walks: int) -> list[tuple[list[int], list[int]]]:
        """Tokens and nodes of the first walks' paths, once the copy is done."""
        found = self._buffer.host
        rows = zip(
            found["tokens"][:walks].tolist(), found["nodes"][:walks].tolist(), found["lengths"][:walks], strict=True
        )
        return [(tokens[:length], nodes[:length]) for tokens, nodes, length in rows]
