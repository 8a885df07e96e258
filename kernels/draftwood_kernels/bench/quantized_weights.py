"""Random weights of codes, of the kinds that checkpoints have."""

from dataclasses import dataclass
from math import sqrt

import torch

from draftwood_kernels.bench.case import size_bytes
from draftwood_kernels.quantized_linear import dequantize

_CODES_A_WORD = 8


@dataclass(frozen=True, kw_only=True)
class QuantizedWeight:
    """codes and scales as `quantized_linear` has them, with any leading dimensions."""

    kind: str
    codes: torch.Tensor
    scales: torch.Tensor
    group: int

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.codes, self.scales)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """[..., O, I]"""
        return dequantize(self.codes, self.scales, self.group).to(dtype)


def quantized_weights(*sizes: int, device: torch.device) -> list[QuantizedWeight]:
    """[..., O, I] in fp8 and in int4."""
    *leading, inputs = sizes
    words = (*leading, inputs // _CODES_A_WORD)

    def scales(group: int) -> torch.Tensor:
        return (torch.rand(*leading, -(-inputs // group), device=device) + 0.5) / sqrt(inputs)

    return [
        QuantizedWeight(
            kind="fp8", codes=torch.randn(sizes, device=device).to(torch.float8_e4m3fn), scales=scales(128), group=128
        ),
        QuantizedWeight(
            kind="int4",
            codes=torch.randint(-(2**31), 2**31, words, device=device, dtype=torch.int32),
            scales=scales(32),
            group=32,
        ),
    ]
