"""Multi-head latent attention (MLA), always in the space of its compressed cache.

A token leaves one latent and one rotated key that all heads share. The up-projections of keys and values are absorbed:
queries go down to the latent space before the scores, outputs come up after the sum, and the cache is never expanded.

Shapes: N rows, E hidden, H heads, R latent (kv_lora_rank), r rotated, n unrotated part of a head, v values of a head.
A cache row is [1, R + r].
"""

from dataclasses import dataclass

import torch

from draftwood_kernels.latent_attention import latent_attention
from draftwood_kernels.rms_norm import rms_norm
from draftwood_kernels.rotary import halves_to_pairs, rotate_pairs
from draftwood_kernels.tree_attention import Layout
from draftwood_verifier.model.layer import LayerKV
from draftwood_verifier.model.weights import Linear, Part, WeightReader
from draftwood_verifier.parallel.linear import length, scaled

# Both inner norms have it whatever rms_norm_eps says. Source: transformers' modeling_deepseek_v3.
_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """query_rank: none where queries are projected at once. interleaved: rotated parts lie in pairs (see rotary)."""

    hidden: int
    heads: int
    query_rank: int | None
    kv_rank: int
    unrotated: int
    rotated: int
    values: int
    bias: bool
    interleaved: bool
    scale: float


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """down [E] -> query latent (or this rank's queries), KV latent, rotated key; query_up is none without a query
    latent. H are this rank's `heads`; latents, and so cache rows, are whole on every rank."""

    config: LatentConfig
    heads: int
    down: Linear
    query_norm: torch.Tensor | None
    query_up: Linear | None
    kv_norm: torch.Tensor  # [R]
    key_up: torch.Tensor  # [H, n, R]
    value_up: torch.Tensor  # [H, R, v]
    o: Linear

    def __call__(self, normed: torch.Tensor, phases: torch.Tensor, kv: LayerKV, layout: Layout) -> torch.Tensor:
        c = self.config
        pages, scratch, workspace = kv
        fused = self.down(normed)
        first, latent, rotated_key = fused.split([fused.shape[1] - c.kv_rank - c.rotated, c.kv_rank, c.rotated], dim=1)
        key = rotate_pairs(rotated_key[:, None], phases)
        torch.cat([rms_norm(latent, self.kv_norm, _EPS)[:, None], key], dim=2, out=scratch)
        queries = self._absorbed_queries(first, phases)
        seen = latent_attention(queries, scratch, pages, workspace, layout, value_dim=c.kv_rank, scale=c.scale)
        values = torch.bmm(seen.transpose(0, 1), self.value_up).transpose(0, 1)
        return self.o(values.reshape(len(normed), -1))

    def _absorbed_queries(self, first: torch.Tensor, phases: torch.Tensor) -> torch.Tensor:
        """[N, H, R + r]: the unrotated part in the latent space, where its products with keys are what they were."""
        c = self.config
        if self.query_up is not None:
            first = self.query_up(rms_norm(first, self.query_norm, _EPS))
        queries = first.reshape(len(first), self.heads, c.unrotated + c.rotated)
        absorbed = torch.bmm(queries[..., : c.unrotated].transpose(0, 1), self.key_up).transpose(0, 1)
        return torch.cat([absorbed, rotate_pairs(queries[..., c.unrotated :], phases)], dim=2)


def load_latent_attention(reader: WeightReader, c: LatentConfig) -> LatentAttention:
    """Raises UnsupportedConfig where row-invariant kernels are wanted."""
    reader.refuse_row_invariance("latent attention")
    held = reader.share.heads(c.heads)
    query_rows, queries = c.heads * (c.unrotated + c.rotated), scaled(held, c.unrotated + c.rotated)
    latent_rows = c.kv_rank + c.rotated
    kv_down = Part(name="kv_a_proj_with_mqa", rows=latent_rows, bias=c.bias, reorder=_tail_in_pairs(c, latent_rows))
    in_pairs = _tail_in_pairs(c, c.unrotated + c.rotated)
    if c.query_rank is None:
        down, query_norm, query_up = Part(name="q_proj", rows=query_rows, held=queries, reorder=in_pairs), None, None
    else:
        down = Part(name="q_a_proj", rows=c.query_rank, bias=c.bias)
        query_norm = reader.tensor("q_a_layernorm.weight", c.query_rank)
        query_up = reader.linear([Part(name="q_b_proj", rows=query_rows, held=queries, reorder=in_pairs)], c.query_rank)
    head = c.unrotated + c.values
    up = reader.matrix("kv_b_proj", c.heads * head, c.kv_rank, held=scaled(held, head)).view(-1, head, c.kv_rank)
    output = Part(name="o_proj", rows=c.hidden, bias=c.bias)
    return LatentAttention(
        config=c,
        heads=length(held),
        down=reader.linear([down, kv_down], c.hidden),
        query_norm=query_norm,
        query_up=query_up,
        kv_norm=reader.tensor("kv_a_layernorm.weight", c.kv_rank),
        key_up=up[:, : c.unrotated].contiguous(),
        value_up=up[:, c.unrotated :].transpose(1, 2).contiguous(),
        o=reader.share.summed(reader.linear([output], c.heads * c.values, scaled(held, c.values))),
    )


class _TailInPairs:
    """The last `tail` of every `head` rows from halves to pairs."""

    def __init__(self, head: int, tail: int) -> None:
        self._head = head
        self._tail = tail

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        heads = rows.reshape(-1, self._head, *rows.shape[1:])
        kept, tails = heads.split([self._head - self._tail, self._tail], dim=1)
        turned = halves_to_pairs(tails.reshape(-1, *rows.shape[1:]), self._tail).view_as(tails)
        return torch.cat([kept, turned], dim=1).view_as(rows)


def _tail_in_pairs(c: LatentConfig, head: int) -> _TailInPairs | None:
    return None if c.interleaved else _TailInPairs(head, c.rotated)
