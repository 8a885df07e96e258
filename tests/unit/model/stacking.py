"""A CPU that takes the part of a GPU where experts are placed."""

from draftwood_kernels.placement import CPU, Placement


class Stacking(Placement):
    @property
    def is_gpu(self) -> bool:
        return True


STACKING = Stacking(device=CPU.device, dtype=CPU.dtype)
