"""SiLU of the gate times the up projection: a program makes one block of one row, in float32, rounded once.

Shapes: I intermediate size.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

BLOCK, WARPS = 1024, 4


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    fused = gate_up if gate_up.stride(-1) == 1 else gate_up.contiguous()
    rows, width = fused.shape[0], fused.shape[1] // 2
    out = torch.empty(rows, width, dtype=fused.dtype, device=fused.device)
    if out.numel():
        _silu_and_mul_kernel[(rows, triton.cdiv(width, BLOCK))](
            fused, out, fused.stride(0), width, BLOCK=BLOCK, num_warps=WARPS, num_stages=1
        )
    return out


@triton.jit
def _silu_and_mul_kernel(gate_up, out, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    base = gate_up + row * row_stride + column
    gate = tl.load(base, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(base + width, mask=inside, other=0.0).to(tl.float32)
    falling = tl.exp(-tl.abs(gate))
    product = gate * tl.where(gate >= 0, 1.0, falling) / (1.0 + falling) * up
    tl.store(out + row * width + column, product.to(out.dtype.element_ty), mask=inside)


SPECIALISATIONS: list[Specialisation] = [
    Specialisation(
        kernel=_silu_and_mul_kernel,
        name=f"silu_and_mul {dtype}",
        signature={"gate_up": f"*{dtype}", "out": f"*{dtype}", "row_stride": "i32", "width": "i32"},
        constexprs={"BLOCK": BLOCK},
        num_warps=WARPS,
        num_stages=1,
    )
    for dtype in ("bf16", "fp16", "fp32")
]
