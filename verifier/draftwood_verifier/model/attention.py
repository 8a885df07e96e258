"""Grouped-query attention over the flat rows of a step.

Shapes: N rows, E hidden, H query heads, G KV heads, D head size. A cache row is [2G, D]: keys, then values.
"""

from dataclasses import dataclass
from functools import partial

import torch

from draftwood_checkpoint.model_config import ModelConfig
from draftwood_kernels.rotary import halves_to_pairs
from draftwood_kernels.sink_attention import sink_attention
from draftwood_kernels.store_kv import store_kv
from draftwood_kernels.tree_attention import Layout, tree_attention
from draftwood_verifier.model.layer import LayerKV
from draftwood_verifier.model.weights import Linear, Part, WeightReader
from draftwood_verifier.parallel.linear import length, scaled


@dataclass(frozen=True, kw_only=True)
class GroupedQueryAttention:
    """This rank's heads. qkv's output is [(H + 2G) * D] with queries and keys in pairs (see rotary); head_norm
    [H + G, D], or none. row_invariant: see tree_attention. sinks [H] and window: see sink_attention; a window needs
    sinks.
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qkv: Linear
    head_norm: torch.Tensor | None
    o: Linear
    row_invariant: bool
    sinks: torch.Tensor | None = None
    window: int | None = None

    def __call__(self, normed: torch.Tensor, phases: torch.Tensor, kv: LayerKV, layout: Layout) -> torch.Tensor:
        pages, scratch, workspace = kv
        fused = self.qkv(normed).view(len(normed), self.heads + 2 * self.kv_heads, self.head_dim)
        queries = store_kv(fused, self.head_norm, self.eps, phases, scratch)
        if self.sinks is None:
            return self.o(tree_attention(queries, scratch, pages, workspace, layout, row_invariant=self.row_invariant))
        seen = sink_attention(queries, scratch, pages, workspace, layout, sinks=self.sinks, window=self.window)
        return self.o(seen)


def load_attention(reader: WeightReader, c: ModelConfig, *, qk_norm: bool) -> GroupedQueryAttention:
    """Queries, keys and values become one product."""
    pairs = partial(halves_to_pairs, head_dim=c.head_dim)
    heads, kv_heads = reader.share.heads(c.num_attention_heads), reader.share.kv_heads(c.num_key_value_heads)
    queries, keys = scaled(heads, c.head_dim), scaled(kv_heads, c.head_dim)
    query_rows, kv_rows = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    qkv = [
        Part(name="q_proj", rows=query_rows, held=queries, bias=c.attention_bias, reorder=pairs),
        Part(name="k_proj", rows=kv_rows, held=keys, bias=c.attention_bias, reorder=pairs),
        Part(name="v_proj", rows=kv_rows, held=keys, bias=c.attention_bias),
    ]
    output = Part(name="o_proj", rows=c.hidden_size, bias=c.attention_bias)
    return GroupedQueryAttention(
        heads=length(heads),
        kv_heads=length(kv_heads),
        head_dim=c.head_dim,
        eps=c.rms_norm_eps,
        qkv=reader.linear(qkv, c.hidden_size),
        head_norm=_head_norm(reader, c.head_dim, length(heads), length(kv_heads)) if qk_norm else None,
        o=reader.share.summed(reader.linear([output], query_rows, queries)),
        row_invariant=reader.placement.row_invariant,
    )


def _head_norm(reader: WeightReader, head_dim: int, heads: int, kv_heads: int) -> torch.Tensor:
    """q_norm for every query head, then k_norm for every KV head."""
    norms = []
    for part, count in (("q_norm", heads), ("k_norm", kv_heads)):
        weight = reader.tensor(f"{part}.weight", head_dim)
        norms.append(halves_to_pairs(weight, head_dim).expand(count, -1))
    return torch.cat(norms)
