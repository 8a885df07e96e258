"""What one rank holds of a model, and the layers that put the ranks' parts together.

Attention is split by heads, an MLP by its inner columns, embedding and head by the vocabulary. What enters and leaves a
layer is whole on every rank, so norms, residuals, routers and features need no exchange.
Shapes: N rows, E hidden, v tokens of this rank.
"""

from collections.abc import Callable
from functools import partial

import torch

from draftwood_checkpoint.errors import UnsupportedConfig
from draftwood_verifier.parallel.groups import Group

Layer = Callable[[torch.Tensor], torch.Tensor]

# Sampling noise comes four tokens a counter, so a shard begins with a whole one.
VOCABULARY_STEP = 4


class Share:
    """What is this rank's of everything that can be split; all of it, without a group.

    All methods that split raise UnsupportedConfig, which names the field, when it can't be done for so many ranks.
    """

    def __init__(self, group: Group | None) -> None:
        self._group = group
        self.rank, self.ranks = (group.rank, group.size) if group else (0, 1)

    @classmethod
    def planned(cls, rank: int, ranks: int) -> "Share":
        """What a rank of so many would hold. There is no group yet, so layers made for it can be measured, not run."""
        share = cls(None)
        share.rank, share.ranks = rank, ranks
        return share

    def part(self, field: str, size: int, *, step: int = 1) -> slice:
        """A piece of 0 … size - 1: as even as pieces that begin at multiples of `step` can be, none empty."""
        steps = -(-size // step)
        if steps < self.ranks:
            raise UnsupportedConfig(f"config.json: {field}: {size} is too small for {self.ranks} ranks")
        first, end = steps * self.rank // self.ranks, steps * (self.rank + 1) // self.ranks
        return slice(first * step, min(size, end * step))

    def vocabulary(self, size: int) -> slice:
        return self.part("vocab_size", size, step=VOCABULARY_STEP)

    def heads(self, count: int) -> slice:
        """Query heads; the same number on every rank, so that each reads whole KV heads."""
        if count % self.ranks:
            raise UnsupportedConfig(
                f"config.json: num_attention_heads: {count} can't be split evenly over {self.ranks} ranks"
            )
        return self.part("num_attention_heads", count)

    def kv_heads(self, count: int) -> slice:
        """With fewer of them than ranks, neighbours hold the same one: the one that their query heads read."""
        if count % self.ranks and self.ranks % count:
            raise UnsupportedConfig(
                f"config.json: num_key_value_heads: {count} is neither a multiple nor a divisor of {self.ranks} ranks"
            )
        if self.ranks <= count:
            return self.part("num_key_value_heads", count)
        head = self.rank * count // self.ranks
        return slice(head, head + 1)

    def mine(self, bias: torch.Tensor) -> torch.Tensor | None:
        """Of a bias that every rank would add to its part of a sum, the one that is added."""
        return bias if self.rank == 0 else None

    def summed(self, layer: Layer) -> Layer:
        """`layer` gives this rank's part [N, E] of a sum, in a new tensor; the result gives the sum, on every rank."""
        return layer if self._group is None else _Summed(layer, self._group)

    def embedding(self, weight: torch.Tensor, first: int) -> Layer:
        """weight [v, E] of the tokens from `first` on -> (token ids int [N] -> [N, E])."""
        if self._group is None:
            return partial(weight.index_select, 0)
        return _Summed(_PartialEmbedding(weight, first), self._group)


ALONE = Share(None)


def length(part: slice) -> int:
    return int(part.stop - part.start)


def scaled(part: slice, factor: int) -> slice:
    """The rows of `part`'s heads, `factor` rows a head."""
    return slice(part.start * factor, part.stop * factor)


class _Summed:
    def __init__(self, layer: Layer, group: Group) -> None:
        self._layer = layer
        self._group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.sum(self._layer(x))


class _PartialEmbedding:
    """Zeros for the tokens of other ranks: a sum with them changes no bit."""

    def __init__(self, weight: torch.Tensor, first: int) -> None:
        self._weight = weight
        self._first = first

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        local = token_ids - self._first
        elsewhere = (local < 0) | (local >= len(self._weight))
        rows = self._weight.index_select(0, local.masked_fill(elsewhere, 0))
        return rows.masked_fill_(elsewhere[:, None], 0)
