"""Experts in OCP's MXFP4: numbers of 4 bits (E2M1), 32 of which share a power of two.

All sixteen numbers are fp8 numbers too, so the codes become fp8 codes, at twice the bytes, and need no arithmetic of
their own.
"""

import torch

from draftwood_checkpoint.quantization import QuantizedTensor
from draftwood_checkpoint.safetensors_index import Checkpoint

GROUP = 32
_MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_CODES = torch.tensor(_MAGNITUDES + [-magnitude for magnitude in _MAGNITUDES]).to(torch.float8_e4m3fn).view(torch.uint8)
_SCALE_BIAS = 127


def load_mxfp4(checkpoint: Checkpoint, name: str, expert: int, shape: tuple[int, int, int]) -> QuantizedTensor:
    """One expert of the stacks `name`_blocks [X, O, I / 32, 16] and `name`_scales [X, O, I / 32]; shape: (X, O, I)."""
    experts, outputs, inputs = shape
    one, groups = slice(expert, expert + 1), inputs // GROUP
    blocks = checkpoint.read(f"{name}_blocks", (experts, outputs, groups, GROUP // 2), rows=one)[0]
    exponents = checkpoint.read(f"{name}_scales", (experts, outputs, groups), rows=one)[0]
    # The lower half of a byte comes first.
    numbers = torch.stack([blocks & 0xF, blocks >> 4], dim=-1).view(outputs, inputs)
    return QuantizedTensor(
        codes=_CODES.to(numbers.device)[numbers.int()].view(torch.float8_e4m3fn),
        scales=torch.ldexp(torch.ones(outputs, groups), exponents.int() - _SCALE_BIAS),
        group=GROUP,
    )
