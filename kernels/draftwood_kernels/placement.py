"""On which device a model is, and in which type its weights, caches and rows are."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Placement:
    device: torch.device
    dtype: torch.dtype

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


def placement_of(device: str) -> Placement:
    """`cpu` in float32, `cuda` or `cuda:1` in bfloat16. Raises ValueError for what is not on this machine."""
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return CPU
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ValueError(f"device: {device} is neither cpu nor cuda nor cuda:0, cuda:1, ...")
    found = torch.cuda.device_count()
    if int(index or 0) >= found:
        raise ValueError(f"device: {device} is not here, torch {torch.__version__} finds {found} CUDA devices")
    return Placement(device=torch.device("cuda", int(index or 0)), dtype=torch.bfloat16)
