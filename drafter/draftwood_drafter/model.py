"""The DFlash draft model as it serves: context rows and block rows go separate ways.

Shapes: S sessions, B block size, C context columns, N rows, E hidden, L layers, H query heads, G KV heads, D head
size, F feature width (target layers * E), V vocabulary. In the placement's type throughout.

A context row (one target position) becomes keys and values of all layers at once, by two linears; it never sees
queries, o_proj or the MLP, so it is made once and kept. Only the B rows of a block run through the layers: the root's
embedding and B - 1 mask embeddings, bidirectional among themselves, with a full view of the context before the root.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftwood_checkpoint.draft_config import DraftConfig
from draftwood_drafter.block_mask import block_mask
from draftwood_kernels.linear import PackedLinear
from draftwood_kernels.placement import CPU, Placement
from draftwood_kernels.rms_norm import add_rms_norm, rms_norm
from draftwood_kernels.rotary import RotaryTable, rotate_pairs
from draftwood_kernels.silu_and_mul import silu_and_mul


@dataclass(frozen=True, kw_only=True)
class DraftLayer:
    """Weights of one layer; q, k and v are one linear, so are gate and up. head_norm [H + G, D] is q_norm, k_norm.

    Elements of query and key heads, here and in the cache, are in pairs (see `rotary`), not in the checkpoint's halves.
    """

    input_norm: torch.Tensor
    qkv: PackedLinear
    head_norm: torch.Tensor
    o: PackedLinear
    post_attention_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear
    is_causal: bool
    window: int | None


@dataclass(frozen=True, kw_only=True)
class DraftWeights:
    """Everything outside the layers. The embedding and the head are the target's; context_kv makes [L, 2, G, D].

    Without a head the model ends at hidden states, which the verifier turns into logits.
    """

    embedding: torch.Tensor
    head: PackedLinear | None
    fc: PackedLinear
    hidden_norm: torch.Tensor
    context_kv: PackedLinear
    # [L, 1, D]: k_norm of every layer.
    context_k_norm: torch.Tensor
    layers: list[DraftLayer]
    norm: torch.Tensor


class DraftModel:
    """Weights and what all backends do with them; `placement` says where they are."""

    def __init__(
        self, config: DraftConfig, weights: DraftWeights, rotary: RotaryTable, placement: Placement = CPU
    ) -> None:
        self.config = config
        self.vocab_size = len(weights.embedding)
        self.feature_width = len(config.target_layer_ids) * config.hidden_size
        self.context_limit = config.max_position_embeddings
        self.has_head = weights.head is not None
        self.weights = weights
        self.rotary = rotary
        self.placement = placement

    def context_rows(self, features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """features [N, F] at absolute positions int64 [N] -> keys and values [N, L, 2, G, D]."""
        c = self.config
        weights = self.weights
        fused = rms_norm(weights.fc(features), weights.hidden_norm, c.rms_norm_eps)
        rows = weights.context_kv(fused).view(-1, c.num_hidden_layers, 2, c.num_key_value_heads, c.head_dim)
        keys = rms_norm(rows[:, :, 0], weights.context_k_norm, c.rms_norm_eps)
        rows[:, :, 0] = rotate_pairs(keys.flatten(1, 2), self.rotary.phases(positions)).view_as(keys)
        return rows

    def block_hidden(self, roots: list[int], lengths: list[int], context: torch.Tensor) -> torch.Tensor:
        """Final hidden states of slots 1 … of each session's block: [S, B - 1, E].

        `roots` are the last committed tokens, at positions `lengths` (one context row before each of those);
        `context` [S, B + C, L, 2, G, D] holds the context from column B on and is scribbled on before that.
        """
        block_size = self.config.block_size
        ids = torch.full((len(roots), block_size), self.config.mask_token_id, device=context.device)
        ids[:, 0] = torch.tensor(roots, device=context.device)
        starts = torch.tensor(lengths, device=context.device)[:, None]
        phases = self.rotary.phases((starts + torch.arange(block_size, device=context.device)).flatten())
        masks = self._masks(lengths, context.device)
        residual = self.embed(ids.flatten())
        normed = rms_norm(residual, self.weights.layers[0].input_norm, self.config.rms_norm_eps)
        for index, layer in enumerate(self.weights.layers):
            mask = masks[layer.is_causal, layer.window]
            attended = self._attend(layer, normed, phases, context[:, :, index], mask)
            normed, residual = self.mlp(layer, attended, residual, self.norm_after(index))
        return normed.view(len(roots), block_size, -1)[:, 1:]

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """ids int64 [N] -> what enters the first layer: a new [N, E]."""
        embedded = self.weights.embedding[ids]
        if self.config.input_embedding_scale != 1:
            embedded.mul_(self.config.input_embedding_scale)
        return embedded

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, E] -> [N, V], a new tensor; only for a model that has a head."""
        assert self.weights.head is not None, "logits of a model without a head"
        logits = self.weights.head(hidden)
        if self.config.output_multiplier != 1:
            logits.mul_(self.config.output_multiplier)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def norm_after(self, layer: int) -> torch.Tensor:
        """The norm that follows a layer's residual: the next layer's input norm, or the final one."""
        layers = self.weights.layers
        return layers[layer + 1].input_norm if layer + 1 < len(layers) else self.weights.norm

    def _masks(self, lengths: list[int], device: torch.device) -> dict[tuple[bool, int | None], torch.Tensor | None]:
        """Every kind of mask that the layers want, [S, 1, H / G * B, B + C], once a step."""
        kinds = {(layer.is_causal, layer.window) for layer in self.weights.layers}
        masks: dict[tuple[bool, int | None], torch.Tensor | None] = {}
        for is_causal, window in kinds:
            mask = block_mask(lengths, self.config.block_size, is_causal=is_causal, window=window, device=device)
            masks[is_causal, window] = None if mask is None else mask.repeat(1, self._group_size, 1)[:, None]
        return masks

    def _attend(
        self,
        layer: DraftLayer,
        normed: torch.Tensor,
        phases: torch.Tensor,
        context: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """normed [S * B, E], context [S, B + C, 2, G, D] of this layer -> o_proj's output [S * B, E]."""
        c = self.config
        sessions, group = len(context), self._group_size
        fused = layer.qkv(normed).view(len(normed), -1, c.head_dim)
        queries_keys = rms_norm(fused[:, : -c.num_key_value_heads], layer.head_norm, c.rms_norm_eps)
        queries_keys = rotate_pairs(queries_keys, phases)
        heads = c.num_attention_heads
        block = context[:, : c.block_size]
        block[:, :, 0] = queries_keys[:, heads:].view_as(block[:, :, 0])
        block[:, :, 1] = fused[:, -c.num_key_value_heads :].view_as(block[:, :, 1])
        # The heads of one group share keys, so they go in as further rows of one head: [S, G, H / G * B, D].
        queries = queries_keys[:, :heads].reshape(sessions, c.block_size, -1, group, c.head_dim)
        queries = queries.permute(0, 2, 3, 1, 4).flatten(2, 3)
        keys, values = context[:, :, 0].transpose(1, 2), context[:, :, 1].transpose(1, 2)
        out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        out = out.unflatten(2, (group, -1)).permute(0, 3, 1, 2, 4).reshape(len(normed), -1)
        return layer.o(out)

    def mlp(
        self, layer: DraftLayer, attended: torch.Tensor, residual: torch.Tensor, next_norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """o_proj's output and the residual, both [N, E] -> the normed input of what comes next and the new residual."""
        eps = self.config.rms_norm_eps
        normed, residual = add_rms_norm(attended, residual, layer.post_attention_norm, eps)
        return add_rms_norm(layer.down(silu_and_mul(layer.gate_up(normed))), residual, next_norm, eps)

    @property
    def _group_size(self) -> int:
        return self.config.num_attention_heads // self.config.num_key_value_heads
