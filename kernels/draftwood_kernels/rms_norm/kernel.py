"""RMSNorm by one program a row: a row is read once and its bits depend on nothing else in the batch.

Shapes: N rows, H heads (1 where a row is a whole hidden state), E elements of the norm.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return _launch(x, None, weight, eps)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, total = _launch(x, residual, weight, eps)
    assert total is not None, "a launch with a residual makes the sum"
    return normed, total


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    x_NHE = _as_heads(x)
    residual_NHE = None if residual is None else _as_heads(residual.expand(x.shape))
    weight_NHE = None if weight is None else _as_heads(weight.expand(x.shape))
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.empty_like(normed)
    rows, heads, width = x_NHE.shape
    if rows * heads:
        _rms_norm_kernel[(rows * heads,)](
            x_NHE,
            residual_NHE,
            weight_NHE,
            normed,
            total,
            x_NHE.stride(0),
            x_NHE.stride(1),
            0 if residual_NHE is None else residual_NHE.stride(0),
            0 if residual_NHE is None else residual_NHE.stride(1),
            0 if weight_NHE is None else weight_NHE.stride(0),
            0 if weight_NHE is None else weight_NHE.stride(1),
            eps,
            heads,
            width,
            **_tuning(width),
        )
    return normed, total


def _as_heads(x: torch.Tensor) -> torch.Tensor:
    """x [..., E] -> [N, H, E], a view wherever strides allow one; E lies dense."""
    width = x.shape[-1]
    heads = x[None, None] if x.ndim == 1 else x[:, None] if x.ndim == 2 else x.flatten(1, -2)
    return heads if heads.stride(-1) == 1 or width == 1 else heads.contiguous()


def _tuning(width: int) -> dict[str, int]:
    block: int = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16), "num_stages": 1}


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    normed,
    total,
    x_row_stride,
    x_head_stride,
    residual_row_stride,
    residual_head_stride,
    weight_row_stride,
    weight_head_stride,
    eps,
    heads,
    width,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row, head = index // heads, index % heads
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * x_row_stride + head * x_head_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        base = residual + row * residual_row_stride + head * residual_head_stride
        values += tl.load(base + columns, mask=inside, other=0.0).to(tl.float32)
        # The norm is that of the sum which the next layer reads, rounding included.
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + index * width + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    scaled = values / tl.sqrt(tl.sum(values * values, axis=0) / width + eps)
    if weight is not None:
        base = weight + row * weight_row_stride + head * weight_head_stride
        scaled *= tl.load(base + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + index * width + columns, scaled.to(normed.dtype.element_ty), mask=inside)


def _specialisation(dtype: str, width: int, *, residual: bool, weight: bool) -> Specialisation:
    tuning = _tuning(width)
    pointers = {"x": True, "residual": residual, "weight": weight, "normed": True, "total": residual}
    strides = [f"{name}_{axis}_stride" for name in ("x", "residual", "weight") for axis in ("row", "head")]
    constexprs: dict[str, Any] = {name: None for name, used in pointers.items() if not used}
    return Specialisation(
        kernel=_rms_norm_kernel,
        name=f"{'add_' if residual else ''}rms_norm {dtype} E={width}{'' if weight else ' no weight'}",
        signature={name: f"*{dtype}" for name, used in pointers.items() if used}
        | dict.fromkeys(strides, "i32")
        | {"eps": "fp32", "heads": "i32", "width": "i32"},
        constexprs=constexprs | {"BLOCK": tuning["BLOCK"]},
        num_warps=tuning["num_warps"],
        num_stages=tuning["num_stages"],
    )


SPECIALISATIONS: list[Specialisation] = [
    _specialisation(dtype, width, residual=residual, weight=True)
    for dtype in ("bf16", "fp16", "fp32")
    for width, residual in [(64, False), (128, False), (256, False), (1024, True), (4096, True), (8192, True)]
] + [_specialisation(dtype, 128, residual=False, weight=False) for dtype in ("bf16", "fp32")]
