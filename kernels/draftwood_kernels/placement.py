"""On which device a model is, in which type its weights, caches and rows are, and by which kernels it is computed."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Placement:
    """row_invariant: kernels whose result for a row has the same bits whatever else is in the batch."""

    device: torch.device
    dtype: torch.dtype
    row_invariant: bool = False

    def place(self, weight: torch.Tensor) -> torch.Tensor:
        """A float tensor, there and of that type."""
        return weight.to(self.device, self.dtype)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def machine(self) -> str:
        """The card, or what the CPU can do: times measured on one are not another's."""
        return torch.cuda.get_device_name(self.device) if self.is_gpu else torch.backends.cpu.get_cpu_capability()


# CPUs of today's servers emulate bfloat16.
CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)
GPU_DTYPE = torch.bfloat16


def placement_of(device: str, *, deterministic: bool = False) -> Placement:
    """`cpu` in float32, `cuda` or `cuda:1` in bfloat16. Raises ValueError for what is not on this machine."""
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        if deterministic:
            raise ValueError("deterministic: needs kernels that only a GPU has (--device cuda)")
        return CPU
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ValueError(f"device: {device} is neither cpu nor cuda nor cuda:0, cuda:1, ...")
    found = torch.cuda.device_count()
    if int(index or 0) >= found:
        raise ValueError(f"device: {device} is not here, torch {torch.__version__} finds {found} CUDA devices")
    return Placement(device=torch.device("cuda", int(index or 0)), dtype=GPU_DTYPE, row_invariant=deterministic)
