"""Keyed sampling of many rows on a GPU: the noise words of `philox.py` bit for bit, the draws of `reference.py`.

Shapes: R rows, V vocabulary, S splits of a row. A program draws from one split; a second launch, where S > 1, takes
each row's best. Seeds travel as int64 of the same bits.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator"

import torch
import triton
import triton.language as tl

from draftwood_kernels.keep_bounds import KeepBounds
from draftwood_kernels.specialisation import Specialisation

_BLOCK = 1024  # tokens a program; 150k of them are 148 programs, about one a multiprocessor in a single row
_WARPS = 4


def sample_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    bounds: KeepBounds | None = None,
) -> torch.Tensor:
    """logits [R, V], temperature float32 [R], seeds and positions int64 [R] -> tokens int32 [R]; ties: lower id.

    A logit that is not a number is never drawn.
    """
    return best_tokens(logits, temperature, seeds, positions, bounds)[1]


def best_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    bounds: KeepBounds | None = None,
    *,
    first_token: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `sample_rows`, of logits of the tokens from `first_token` on, a multiple of 4 -> scores float32 [R], tokens.

    A score is a logit over temperature plus noise, so ranks that have a part of the vocabulary each compare theirs.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits: a row has to be contiguous, its stride is {logits.stride(1)}")
    if first_token % 4:
        raise ValueError(f"first_token: {first_token} is no multiple of 4, the tokens of one counter of noise")
    splits = triton.cdiv(vocab, _BLOCK)
    scores = torch.empty(rows, splits, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, splits, dtype=torch.int32, device=logits.device)
    keep = (None, None, None) if bounds is None else (bounds.sure, bounds.tied, bounds.last)
    per_row = (temperature, seeds, positions, *keep)
    if rows:
        grid = (rows, splits)
        sample_kernel[grid](
            logits,
            *per_row,
            scores,
            tokens,
            first_token,
            vocab,
            logits.stride(0),
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
    if splits == 1:
        return scores[:, 0], tokens[:, 0]
    best_scores, best = torch.empty_like(scores[:, 0]), torch.empty_like(tokens[:, 0])
    if rows:
        block = triton.next_power_of_2(splits)
        reduce_kernel[(rows,)](scores, tokens, best_scores, best, splits, BLOCK=block, num_warps=1)
    return best_scores, best


def philox_words(seeds: torch.Tensor, positions: torch.Tensor, count: int) -> torch.Tensor:
    """seeds and positions int64 [R] -> the words of tokens 0 … count - 1, bits of uint64 as int64 [R, count]."""
    words = torch.empty(len(seeds), count, dtype=torch.int64, device=seeds.device)
    if words.numel():
        grid = (len(seeds), triton.cdiv(count, _BLOCK))
        words_kernel[grid](seeds, positions, words, count, BLOCK=_BLOCK, num_warps=_WARPS)
    return words


@triton.jit
def _words(seed: tl.tensor, position: tl.tensor, first: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Words of tokens first … first + BLOCK - 1, uint64 [BLOCK]; first is a multiple of 4."""
    counter = (first // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint64)
    zero = tl.zeros([BLOCK // 4], tl.uint64)
    word_0, word_1, word_2, word_3 = tl.philox(seed, counter, zero + position.to(tl.uint64), zero, zero)
    return tl.interleave(tl.interleave(word_0, word_2), tl.interleave(word_1, word_3))


@triton.jit
def gumbel_noise(seed: tl.tensor, position: tl.tensor, first: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """What `noise.py` draws for tokens first … first + BLOCK - 1, float32 [BLOCK]; first is a multiple of 4."""
    words = _words(seed, position, first, BLOCK)
    # 53 bits in the middle of their cell, in float64 as in noise.py.
    uniform = ((words >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def words_kernel(
    seed_ptr: tl.tensor, position_ptr: tl.tensor, word_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    words = _words(tl.load(seed_ptr + row), tl.load(position_ptr + row), first, BLOCK)
    ids = first + tl.arange(0, BLOCK)
    tl.store(word_ptr + row * count + ids, words.to(tl.int64, bitcast=True), mask=ids < count)


@triton.jit
def sample_kernel(
    logit_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    position_ptr: tl.tensor,
    sure_ptr: tl.tensor,
    tied_ptr: tl.tensor,
    last_ptr: tl.tensor,
    score_ptr: tl.tensor,
    token_ptr: tl.tensor,
    first_token: tl.tensor,
    vocab: tl.tensor,
    row_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One split of one row; without bounds, their pointers are None."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    first = split * BLOCK
    ids = first + tl.arange(0, BLOCK)
    scores = tl.load(logit_ptr + row * row_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0:
        logits = scores
        noise = gumbel_noise(tl.load(seed_ptr + row), tl.load(position_ptr + row), first_token + first, BLOCK)
        # The division has to round as torch's does.
        scores = tl.div_rn(logits, temperature + tl.zeros_like(logits)) + noise
        if sure_ptr is not None:
            tied = (logits >= tl.load(tied_ptr + row)) & (ids <= tl.load(last_ptr + row))
            scores = tl.where((logits >= tl.load(sure_ptr + row)) | tied, scores, float("-inf"))
    scores = tl.where(scores == scores, scores, float("-inf"))
    score, index = tl.max(scores, axis=0, return_indices=True)
    place = row * tl.num_programs(1) + split
    tl.store(score_ptr + place, score)
    tl.store(token_ptr + place, first_token + first + index)


@triton.jit
def reduce_kernel(
    score_ptr: tl.tensor,
    token_ptr: tl.tensor,
    best_score_ptr: tl.tensor,
    best_ptr: tl.tensor,
    splits: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The best split of a row; among equals the first, which holds the lower ids."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    scores = tl.load(score_ptr + row * splits + columns, mask=columns < splits, other=float("-inf"))
    score, place = tl.max(scores, axis=0, return_indices=True)
    tl.store(best_score_ptr + row, score)
    tl.store(best_ptr + row, tl.load(token_ptr + row * splits + place))


_KEYS = {"temperature_ptr": "*fp32", "seed_ptr": "*i64", "position_ptr": "*i64"}
_BOUNDS = {"sure_ptr": "*fp32", "tied_ptr": "*fp32", "last_ptr": "*i32"}
_PARTS = {"score_ptr": "*fp32", "token_ptr": "*i32"}


def _sampling(dtype: str, bounded: bool) -> Specialisation:
    bounds = _BOUNDS if bounded else {}
    return Specialisation(
        kernel=sample_kernel,
        name=f"{dtype} logits, {'top-k/top-p/min-p' if bounded else 'all kept'}",
        signature={
            "logit_ptr": f"*{dtype}",
            **_KEYS,
            **bounds,
            **_PARTS,
            "first_token": "i32",
            "vocab": "i32",
            "row_stride": "i32",
        },
        constexprs={"BLOCK": _BLOCK} | ({} if bounded else dict.fromkeys(_BOUNDS)),
        num_warps=_WARPS,
        num_stages=1,
    )


SPECIALISATIONS: list[Specialisation] = [
    *(_sampling(dtype, bounded) for dtype in ("fp32", "bf16", "fp16") for bounded in (False, True)),
    *(
        Specialisation(
            kernel=reduce_kernel,
            name=f"{block} splits",
            signature={**_PARTS, "best_score_ptr": "*fp32", "best_ptr": "*i32", "splits": "i32"},
            constexprs={"BLOCK": block},
            num_warps=1,
            num_stages=1,
        )
        for block in (2, 32, 64, 128, 256)
    ),
    Specialisation(
        kernel=words_kernel,
        name="words",
        signature={"seed_ptr": "*i64", "position_ptr": "*i64", "word_ptr": "*i64", "count": "i32"},
        constexprs={"BLOCK": _BLOCK},
        num_warps=_WARPS,
        num_stages=1,
    ),
]
