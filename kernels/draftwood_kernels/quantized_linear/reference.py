import torch
from torch.nn import functional

CODES_A_WORD = 8
_SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)


def quantized_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    return functional.linear(x, dequantize(codes, scales, group).to(x.dtype))


def dequantize(codes: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """float32 [..., O, I] from codes and scales with any leading dimensions."""
    numbers = _unpack(codes) if codes.dtype == torch.int32 else codes.to(torch.float32)
    return numbers.mul_(scales.repeat_interleave(group, dim=-1)[..., : numbers.shape[-1]])


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """int32 [..., W] -> float32 [..., 8 * W]."""
    return ((words[..., None] >> _SHIFTS.to(words.device)) & 0xF).sub_(8).flatten(-2).to(torch.float32)
