"""Models that take no room, of the types that they have where they would be served."""

import torch

from draftwood_kernels.placement import CPU, GPU_DTYPE, Placement


def nowhere(*, on_cpu: bool) -> Placement:
    return Placement(device=torch.device("meta"), dtype=CPU.dtype if on_cpu else GPU_DTYPE)
