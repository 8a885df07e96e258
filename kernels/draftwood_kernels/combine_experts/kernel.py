"""The weighted sum of what a row's experts made of it: a program makes one block of one row.

The order of the sum is that of the row's choices, where atomic additions would have any.

Shapes: N rows, K experts a row, M = N * K pairs, E hidden.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

BLOCK, WARPS = 1024, 4


def combine_experts(
    outputs: torch.Tensor, weights: torch.Tensor, places: torch.Tensor, end: torch.Tensor
) -> torch.Tensor:
    rows, choices = weights.shape
    assert len(places) == rows * choices, f"{len(places)} places of {rows} * {choices} pairs"
    assert (places.dtype, end.dtype) == (torch.int64, torch.int32), f"places are {places.dtype}, end {end.dtype}"
    hidden = outputs.shape[1]
    out = torch.empty(rows, hidden, dtype=outputs.dtype, device=outputs.device)
    if out.numel():
        _combine_experts_kernel[(rows, triton.cdiv(hidden, BLOCK))](
            outputs.contiguous(),
            weights.contiguous(),
            places.contiguous(),
            end,
            out,
            choices,
            hidden,
            BLOCK=BLOCK,
            num_warps=WARPS,
            num_stages=1,
        )
    return out


@triton.jit
def _combine_experts_kernel(outputs, weights, places, end, out, choices, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    last = tl.load(end)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(0, choices):
        place = tl.load(places + row * choices + choice)
        somebodys = place < last
        output = tl.load(outputs + place * hidden + column, mask=inside & somebodys, other=0.0)
        total += tl.load(weights + row * choices + choice, mask=somebodys, other=0.0) * output.to(tl.float32)
    tl.store(out + row * hidden + column, total.to(out.dtype.element_ty), mask=inside)


SPECIALISATIONS: list[Specialisation] = [
    Specialisation(
        kernel=_combine_experts_kernel,
        name=f"combine_experts {dtype}",
        signature={"outputs": f"*{dtype}", "weights": "*fp32", "places": "*i64", "end": "*i32", "out": f"*{dtype}"}
        | dict.fromkeys(("choices", "hidden"), "i32"),
        constexprs={"BLOCK": BLOCK},
        num_warps=WARPS,
        num_stages=1,
    )
    for dtype in ("bf16", "fp16", "fp32")
]
