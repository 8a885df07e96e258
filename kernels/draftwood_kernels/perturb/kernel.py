"""Noise on logits: a program makes a block of one row. The numbers are those that `sample` draws with.

Shapes: R rows, V vocabulary.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl

from draftwood_kernels.perturb.rows import NoiseRows
from draftwood_kernels.sample.kernel import gumbel_noise
from draftwood_kernels.specialisation import Specialisation

_BLOCK, _WARPS = 1024, 4


def perturb_rows(logits: torch.Tensor, rows: NoiseRows) -> torch.Tensor:
    """Raises ValueError where a row of logits is not dense."""
    count, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits: a row has to be contiguous, its stride is {logits.stride(1)}")
    out = torch.empty(count, vocab, dtype=torch.float32, device=logits.device)
    if count:
        _perturb_kernel[(count, triton.cdiv(vocab, _BLOCK))](
            logits,
            rows.temperatures,
            rows.seeds,
            rows.positions,
            rows.is_seeded,
            out,
            vocab,
            logits.stride(0),
            BLOCK=_BLOCK,
            num_warps=_WARPS,
            num_stages=1,
        )
    return out


@triton.jit
def _perturb_kernel(logits, temperatures, seeds, positions, is_seeded, out, vocab, row_stride, BLOCK: tl.constexpr):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    token = first + tl.arange(0, BLOCK)
    values = tl.load(logits + row * row_stride + token, mask=token < vocab, other=0.0).to(tl.float32)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        # The division has to round as torch's does.
        values = tl.div_rn(values, temperature + tl.zeros_like(values))
        if tl.load(is_seeded + row) != 0:
            values += gumbel_noise(tl.load(seeds + row), tl.load(positions + row), first, BLOCK)
    tl.store(out + row * vocab + token, values, mask=token < vocab)


SPECIALISATIONS: list[Specialisation] = [
    Specialisation(
        kernel=_perturb_kernel,
        name=f"perturb {dtype} logits",
        signature={"logits": f"*{dtype}", "temperatures": "*fp32", "out": "*fp32", "is_seeded": "*i32"}
        | {"seeds": "*i64", "positions": "*i64", "vocab": "i32", "row_stride": "i32"},
        constexprs={"BLOCK": _BLOCK},
        num_warps=_WARPS,
        num_stages=1,
    )
    for dtype in ("bf16", "fp16", "fp32")
]
