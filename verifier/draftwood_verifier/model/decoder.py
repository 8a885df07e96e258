"""A decoder over the flat rows of a step; what its layers are made of, a family says.

Shapes: N rows, K logit rows, E hidden, v tokens of this rank: alone, all. Numbers are of the model's
type, which is float32 on a CPU.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from draftwood_checkpoint.model_config import ModelConfig
from draftwood_kernels.rms_norm import add_rms_norm, rms_norm
from draftwood_kernels.rotary import RotaryTable
from draftwood_kernels.tree_attention import AttentionLayout, Layout
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.model.layer import DecoderLayer
from draftwood_verifier.model.weights import Linear


@dataclass(frozen=True, kw_only=True)
class DecoderWeights:
    embedding: Linear  # token ids [rows] -> [rows, E]
    layers: list[DecoderLayer]
    norm: torch.Tensor  # [E]
    head: Linear  # [rows, E] -> [rows, v]


@dataclass(frozen=True, kw_only=True)
class DecoderOutput:
    """logits [K, v]; features: layer -> its output after the residual addition [N, E], for the layers asked for."""

    logits: torch.Tensor
    features: dict[int, torch.Tensor]


class DecoderModel:
    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        rotary: RotaryTable,
        cache_row: tuple[int, int],
        vocabulary: slice,
    ) -> None:
        """cache_row: heads and numbers a head of a KV row, as the layers write it. vocabulary: the v tokens."""
        self.config = config
        self.cache_row = cache_row
        self.vocabulary = vocabulary
        self._weights = weights
        self._rotary = rotary

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        logit_rows: torch.Tensor,
        layout: Layout,
        pool: KVPool,
        feature_layers: Collection[int] = (),
    ) -> DecoderOutput:
        """token_ids, positions int [N], logit_rows int [K]. Keys and values of the rows go to pool.scratch(N)."""
        eps, layers = self.config.rms_norm_eps, self._weights.layers
        phases = self._rotary.phases(positions)
        scratch = pool.scratch(len(token_ids))
        workspace = pool.workspace(layout.workspace_rows) if isinstance(layout, AttentionLayout) else None
        features: dict[int, torch.Tensor] = {}
        residual = self._weights.embedding(token_ids)
        normed = rms_norm(residual, layers[0].input_norm, eps)
        for index, layer in enumerate(layers):
            kv = (pool.pages[index], scratch[index], workspace)
            attended = layer.attention(normed, phases, kv, layout)
            normed, residual = add_rms_norm(attended, residual, layer.post_attention_norm, eps)
            delta = layer.mlp(normed)
            if index + 1 < len(layers):
                normed, residual = add_rms_norm(delta, residual, layers[index + 1].input_norm, eps)
            else:
                residual = residual + delta
            if index in feature_layers:
                features[index] = residual
        return DecoderOutput(logits=self._logits(residual, logit_rows), features=features)

    def draft_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [K, E], a draft's after its own final norm -> [K, v], a new tensor."""
        return self._weights.head(hidden)

    def _logits(self, hidden: torch.Tensor, logit_rows: torch.Tensor) -> torch.Tensor:
        if len(logit_rows) < len(hidden):
            hidden = hidden.index_select(0, logit_rows)
        if not len(hidden):
            return hidden.new_zeros(0, self.vocabulary.stop - self.vocabulary.start)
        return self._weights.head(rms_norm(hidden, self._weights.norm, self.config.rms_norm_eps))
