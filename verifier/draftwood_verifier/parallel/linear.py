"""What one rank holds of a decoder, and the layers that put the ranks' parts together.

Attention is split by heads, the MLP by its inner columns, embedding and head by the vocabulary. What enters and leaves
a layer is whole on every rank, so norms, residuals and features need no exchange.
Shapes: N rows, E hidden, V vocabulary (of one rank: v).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_checkpoint.model_config import ModelConfig
from draftwood_kernels.linear import PackedLinear
from draftwood_verifier.parallel.groups import Group

Layer = Callable[[torch.Tensor], torch.Tensor]

# Sampling noise comes four tokens a counter, so a shard begins with a whole one.
VOCABULARY_STEP = 4


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a model that one rank holds: which heads, columns and tokens. Alone (no group), it is the whole."""

    heads: slice
    kv_heads: slice
    intermediate: slice
    vocabulary: slice
    group: Group | None

    def local(self, config: ModelConfig) -> ModelConfig:
        """The sizes that this rank computes with; hidden size and vocabulary stay the model's."""
        return replace(
            config,
            num_attention_heads=_length(self.heads),
            num_key_value_heads=_length(self.kv_heads),
            intermediate_size=_length(self.intermediate),
        )

    def summed(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Layer:
        """A linear over inputs of which each rank has its own: x [N, in / ranks] -> [N, E], whole on every rank."""
        if self.group is None:
            return PackedLinear(weight, bias)
        return _SummedLinear(PackedLinear(weight, bias if self.group.leads else None), self.group)

    def embedding(self, weight: torch.Tensor) -> Layer:
        """weight [v, E] -> (token ids int [N] -> [N, E])."""
        if self.group is None:
            return partial(weight.index_select, 0)
        return _SharedEmbedding(weight, self.vocabulary.start, self.group)


def share_of(config: ModelConfig, group: Group | None) -> Share:
    """Raises UnsupportedConfig when the model can't be split into that many ranks."""
    rank, ranks = (group.rank, group.size) if group else (0, 1)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % ranks:
        raise UnsupportedConfig(f"config.json: num_attention_heads: {heads} can't be split evenly over {ranks} ranks")
    if kv_heads % ranks and ranks % kv_heads:
        raise UnsupportedConfig(
            f"config.json: num_key_value_heads: {kv_heads} is neither a multiple nor a divisor of {ranks} ranks"
        )
    return Share(
        heads=spread("num_attention_heads", heads, rank, ranks),
        kv_heads=_kv_heads(kv_heads, rank, ranks),
        intermediate=spread("intermediate_size", config.intermediate_size, rank, ranks),
        vocabulary=spread("vocab_size", config.vocab_size, rank, ranks, step=VOCABULARY_STEP),
        group=group,
    )


def spread(name: str, size: int, rank: int, ranks: int, *, step: int = 1) -> slice:
    """Rank's piece of 0 … size - 1: as even as pieces that begin at multiples of `step` can be, none empty."""
    steps = -(-size // step)
    if steps < ranks:
        raise UnsupportedConfig(f"config.json: {name}: {size} is too small for {ranks} ranks")
    return slice(steps * rank // ranks * step, min(size, steps * (rank + 1) // ranks * step))


def scaled(part: slice, factor: int) -> slice:
    """The rows of `part`'s heads, `factor` rows a head."""
    return slice(part.start * factor, part.stop * factor)


def _kv_heads(kv_heads: int, rank: int, ranks: int) -> slice:
    """With fewer KV heads than ranks, neighbours hold the same one: the one that their query heads read."""
    if ranks <= kv_heads:
        return spread("num_key_value_heads", kv_heads, rank, ranks)
    head = rank * kv_heads // ranks
    return slice(head, head + 1)


def _length(part: slice) -> int:
    length: int = part.stop - part.start
    return length


class _SummedLinear:
    def __init__(self, linear: PackedLinear, group: Group) -> None:
        self._linear = linear
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.sum(self._linear(x))


class _SharedEmbedding:
    """Each row is looked up by the rank that holds its token; the others add zeros, which changes no bit."""

    def __init__(self, weight: torch.Tensor, first: int, group: Group) -> None:
        self._weight = weight
        self._first = first
        self._group = group

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        local = token_ids - self._first
        elsewhere = (local < 0) | (local >= len(self._weight))
        rows = self._weight.index_select(0, local.masked_fill(elsewhere, 0))
        return self._group.sum(rows.masked_fill_(elsewhere[:, None], 0))
