"""Bounds of kept sets without a sort: a program a row looks for thresholds, bit by bit from the highest.

A threshold is searched over the ordered integer image of the logits: the largest image such that the tokens from it on
are k, or weigh top_p of the whole. A pass adds up only the tokens that share the bits found so far, and skips blocks
without any. What ties is decided by weight, as the reference does, for unequal logits may weigh the same.

Shapes: R rows, V vocabulary.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl

from draftwood_kernels.keep_bounds.bounds import KeepBounds
from draftwood_kernels.specialisation import Specialisation

BLOCK, WARPS = 2048, 16


def keep_bounds(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> KeepBounds:
    """Raises ValueError where a row is not dense."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits: a row has to be contiguous, its stride is {logits.stride(1)}")
    sure, tied = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    last = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        per_row = (temperature, top_k, top_p, min_p, sure, tied, last)
        _keep_kernel[(rows,)](
            logits, *per_row, vocab, logits.stride(0), STEPS=_steps(logits.dtype), BLOCK=BLOCK, num_warps=WARPS
        )
    return KeepBounds(sure=sure, tied=tied, last=last)


def _steps(dtype: torch.dtype) -> int:
    """Bits of an image. A bfloat16 is the upper half of a float32, so the lower half says nothing."""
    return 16 if dtype == torch.bfloat16 else 32


@triton.jit
def _load(row, first, vocab, BLOCK: tl.constexpr):
    """Logits, where what is no number counts as -inf, and which of them exist."""
    ids = first + tl.arange(0, BLOCK)
    logits = tl.load(row + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    return tl.where(logits == logits, logits, float("-inf")), ids < vocab


@triton.jit
def _weigh(logits, temperature, peak):
    """Subtracted in float32, as the reference does: what ties there ties here."""
    scaled = tl.div_rn(logits, temperature + tl.zeros_like(logits))
    return tl.exp((scaled - tl.div_rn(peak, temperature)).to(tl.float64))


@triton.jit
def _image(logits, STEPS: tl.constexpr):
    bits = logits.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -0x80000000)).to(tl.uint32, bitcast=True) >> (32 - STEPS)


@triton.jit
def _logit(image, STEPS: tl.constexpr):
    bits = (image << (32 - STEPS)).to(tl.int32, bitcast=True)
    # Of a negative number all bits are turned, those that the image has not too.
    bits = tl.where(bits < 0, bits, bits | ((1 << (32 - STEPS)) - 1))
    return (bits ^ ((~bits >> 31) | -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _search(row, vocab, temperature, peak, target, BY_MASS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest image from which on tokens number, or weigh, at least `target`; 0 if all of them do not."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << (STEPS - 1), tl.uint32)
    passed = target * 0
    for _bit in range(STEPS):
        higher = found | step
        here = target * 0
        for first in range(0, vocab, BLOCK):
            logits, exists = _load(row, first, vocab, BLOCK)
            image = _image(logits, STEPS)
            shares = exists & (image >= higher) & (image - higher < step)
            count = tl.sum(shares.to(tl.int32), axis=0)
            if count > 0:
                if BY_MASS:
                    here += tl.sum(tl.where(shares, _weigh(logits, temperature, peak), 0.0), axis=0)
                else:
                    here += count.to(tl.float64)
        enough = passed + here >= target
        found = tl.where(enough, higher, found)
        passed = tl.where(enough, passed, passed + here)
        step = step >> 1
    return found


@triton.jit
def _above(row, vocab, temperature, peak, weight, BLOCK: tl.constexpr):
    """How many tokens weigh more, and their mass."""
    count = vocab * 0
    mass = weight * 0
    for first in range(0, vocab, BLOCK):
        logits, exists = _load(row, first, vocab, BLOCK)
        weights = _weigh(logits, temperature, peak)
        above = exists & (weights > weight)
        count += tl.sum(above.to(tl.int32), axis=0)
        mass += tl.sum(tl.where(above, weights, 0.0), axis=0)
    return count, mass


@triton.jit
def _keep_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    sure,
    tied,
    last,
    vocab,
    row_stride,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * row_stride
    temperature = tl.load(temperatures + index)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    top_k, top_p, min_p = tl.load(top_ks + index), tl.load(top_ps + index), tl.load(min_ps + index)

    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        highest = tl.maximum(highest, _load(row, first, vocab, BLOCK)[0])
    peak = tl.max(highest, axis=0)

    # min-p: how many there are, and the smallest weight among them.
    total = top_p * 0
    smallest = top_p * 0 + float("inf")
    count = vocab * 0
    for first in range(0, vocab, BLOCK):
        values, exists = _load(row, first, vocab, BLOCK)
        weights = _weigh(values, temperature, peak)
        enough = exists & (weights >= min_p)
        total += tl.sum(tl.where(exists, weights, 0.0), axis=0)
        count += tl.sum(enough.to(tl.int32), axis=0)
        smallest = tl.minimum(smallest, tl.min(tl.where(enough, weights, float("inf")), axis=0))

    limit = vocab
    if top_k > 0:
        limit = tl.minimum(top_k, vocab).to(tl.int32)
        image = _search(row, vocab, temperature, peak, limit.to(tl.float64), False, STEPS, BLOCK)
        weight = _weigh(_logit(image, STEPS), temperature, peak)
        heavier, mass = _above(row, vocab, temperature, peak, weight, BLOCK)
        total = mass + (limit - heavier).to(tl.float64) * weight
        smallest = tl.where(limit < count, weight, smallest)
        count = tl.minimum(count, limit)
    if top_p < 1:
        target = top_p * total
        image = _search(row, vocab, temperature, peak, target, True, STEPS, BLOCK)
        weight = _weigh(_logit(image, STEPS), temperature, peak)
        if (image > 0) & (weight > 0):
            heavier, mass = _above(row, vocab, temperature, peak, weight, BLOCK)
            of_equals = tl.maximum(tl.ceil((target - mass) / weight), 1.0)
            # The quotient may be rounded across a whole number.
            one_less = (of_equals > 1) & (mass + (of_equals - 1) * weight >= target)
            of_equals = tl.where(one_less, of_equals - 1, of_equals)
            of_equals = tl.where(mass + of_equals * weight < target, of_equals + 1, of_equals)
            nucleus = tl.minimum(heavier + of_equals.to(tl.int32), limit)
            smallest = tl.where(nucleus < count, weight, smallest)
            count = tl.minimum(count, nucleus)

    heavier = vocab * 0
    lowest_above = tl.full([BLOCK], float("inf"), tl.float32)
    lowest = tl.full([BLOCK], float("inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        values, exists = _load(row, first, vocab, BLOCK)
        weights = _weigh(values, temperature, peak)
        heavier += tl.sum((exists & (weights > smallest)).to(tl.int32), axis=0)
        lowest_above = tl.minimum(lowest_above, tl.where(exists & (weights > smallest), values, float("inf")))
        lowest = tl.minimum(lowest, tl.where(exists & (weights >= smallest), values, float("inf")))
    tl.store(sure + index, tl.min(lowest_above, axis=0))
    tl.store(tied + index, tl.min(lowest, axis=0))

    # Of the tokens of the last weight, the one that fills the count.
    missing = count - heavier
    seen = vocab * 0
    token = vocab * 0
    for first in range(0, vocab, BLOCK):
        if seen < missing:
            values, exists = _load(row, first, vocab, BLOCK)
            ids = first + tl.arange(0, BLOCK)
            equal = (exists & (_weigh(values, temperature, peak) == smallest)).to(tl.int32)
            rank = seen + tl.cumsum(equal, axis=0)
            token = tl.maximum(token, tl.max(tl.where((equal > 0) & (rank <= missing), ids, 0), axis=0))
            seen += tl.sum(equal, axis=0)
    tl.store(last + index, token)


SPECIALISATIONS: list[Specialisation] = [
    Specialisation(
        kernel=_keep_kernel,
        name=f"{name} logits",
        signature={"logits": f"*{name}", "top_ks": "*i64"}
        | dict.fromkeys(("temperatures", "sure", "tied"), "*fp32")
        | dict.fromkeys(("top_ps", "min_ps"), "*fp64")
        | {"last": "*i32", "vocab": "i32", "row_stride": "i32"},
        constexprs={"STEPS": _steps(dtype), "BLOCK": BLOCK},
        num_warps=WARPS,
        num_stages=1,
    )
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32))
]
