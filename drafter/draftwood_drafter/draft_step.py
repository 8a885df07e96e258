"""A draft on the device, from root tokens to trees: embedding, layers, head, noise and search, no host between.

Shapes: S sessions, B block size, T depths (B - 1), W pages of a table, E hidden, H query heads, D head size, V
vocabulary, M nodes. All of a step's sizes are powers of two; sessions behind the last one have no context, and what
they draft is not read.
"""

from dataclasses import dataclass

import numpy as np
import torch

from draftwood_drafter.context_cache import ContextCache
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import Session, Shape
from draftwood_kernels.block_attention import BlockLayout, block_attention
from draftwood_kernels.build_tree import build_trees, top_candidates
from draftwood_kernels.packed_buffer import Field, PackedBuffer
from draftwood_kernels.perturb import NoiseRows, perturb_rows
from draftwood_kernels.rms_norm import rms_norm
from draftwood_kernels.store_kv import store_kv


@dataclass(frozen=True, kw_only=True)
class DraftSize:
    """is_sampled: some session has a temperature. nodes: of the largest tree; without a head, 0."""

    sessions: int
    pages: int
    nodes: int
    is_sampled: bool


class DraftStep:
    """The step of one size: `fill`, `inputs.upload()`, call it, `outputs.download()`.

    Outputs are token_ids, parents and log_probs [S, M] with counts [S], 0 where a tree's logits were not finite; or
    hidden_states [S, T, E] of a model without a head.
    """

    def __init__(self, model: DraftModel, cache: ContextCache, size: DraftSize) -> None:
        self._model = model
        self._cache = cache
        self._size = size
        c, device = model.config, model.placement.device
        self._offsets = torch.arange(c.block_size, device=device)
        self._ids = torch.full((size.sessions, c.block_size), c.mask_token_id, device=device)
        self.inputs = PackedBuffer(_inputs(size), device)
        self._given = {name: array.numpy() for name, array in self.inputs.host.items()}
        self._given["node_limits"][:] = 1
        self.outputs = PackedBuffer(_trees(size) if model.has_head else _hidden_states(model, size), device)

    def fill(self, group: list[Session]) -> None:
        """Write the host's side; the last outputs have to be there, so the last upload is done."""
        given, count = self._given, len(group)
        lengths = [len(session.tokens) - 1 for session in group]
        seeds = [session.params.seed for session in group]
        # Of what is behind the group, old values may stay, but its context goes.
        given["lengths"][:] = 0
        given["lengths"][:count] = lengths
        given["roots"][:count] = [session.tokens[-1] for session in group]
        given["node_limits"][:count] = [most_nodes(session, len(self._offsets) - 1) for session in group]
        given["chains"][:count] = [session.params.shape is Shape.CHAIN for session in group]
        given["temperatures"][:count] = [session.params.temperature for session in group]
        given["is_seeded"][:count] = [seed is not None for seed in seeds]
        given["seeds"][:count] = np.array([seed or 0 for seed in seeds], np.uint64).view(np.int64)
        for index, (session, length) in enumerate(zip(group, lengths, strict=True)):
            pages = self._cache.pages_of(session.table, length)
            given["block_tables"][index, : len(pages)] = pages

    def __call__(self) -> None:
        hidden = self._hidden()
        if not self._model.has_head:
            self.outputs.device["hidden_states"].copy_(hidden)
            return
        given = self.inputs.device
        logits = self._model.logits(hidden.flatten(0, 1))
        if self._size.is_sampled:
            logits = perturb_rows(logits, self._noise_rows())
        candidates = top_candidates(logits, min(self._size.nodes, self._model.vocab_size))
        trees = build_trees(candidates, given["node_limits"], given["chains"], self._size.nodes)
        for name, made in self.outputs.device.items():
            made.copy_(getattr(trees, name))

    def _hidden(self) -> torch.Tensor:
        """Final hidden states of the blocks' rows 1 …: [S, T, E]."""
        model, given = self._model, self.inputs.device
        self._ids[:, 0] = given["roots"]
        phases = model.rotary.phases((given["lengths"][:, None] + self._offsets).flatten())
        layout = BlockLayout(
            lengths=given["lengths"], block_tables=given["block_tables"], page_size=self._cache.page_size
        )
        residual = model.embed(self._ids.flatten())
        normed = rms_norm(residual, model.weights.layers[0].input_norm, model.config.rms_norm_eps)
        for index, layer in enumerate(model.weights.layers):
            attended = layer.o(self._attend(index, normed, phases, layout))
            normed, residual = model.mlp(layer, attended, residual, model.norm_after(index))
        return normed.view(*self._ids.shape, -1)[:, 1:]

    def _attend(self, index: int, normed: torch.Tensor, phases: torch.Tensor, layout: BlockLayout) -> torch.Tensor:
        """normed [S * B, E] into layer `index` -> [S * B, H * D], without o_proj."""
        c, layer = self._model.config, self._model.weights.layers[index]
        fused = layer.qkv(normed).view(len(normed), -1, c.head_dim)
        fresh = fused.new_empty(len(normed), 2 * c.num_key_value_heads, c.head_dim)
        queries = store_kv(fused, layer.head_norm, c.rms_norm_eps, phases, fresh)
        context = self._cache.keys_values[:, index].flatten(1, 2)
        return block_attention(queries, fresh, context, layout, is_causal=layer.is_causal, window=layer.window)

    def _noise_rows(self) -> NoiseRows:
        """A row of logits at depth d is about the position d behind the root's."""
        given, depths = self.inputs.device, self._model.config.block_size - 1

        def of_rows(name: str) -> torch.Tensor:
            return given[name][:, None].expand(-1, depths).flatten()

        return NoiseRows(
            temperatures=of_rows("temperatures"),
            seeds=of_rows("seeds"),
            positions=(given["lengths"][:, None] + self._offsets[1:]).flatten(),
            is_seeded=of_rows("is_seeded"),
        )


def most_nodes(session: Session, depths: int) -> int:
    """Of the session's next tree; a chain ends with the block."""
    is_chain = session.params.shape is Shape.CHAIN
    return min(session.nodes_wanted, depths) if is_chain else session.nodes_wanted


def _inputs(size: DraftSize) -> dict[str, Field]:
    wide = {"roots": torch.int64, "seeds": torch.int64, "temperatures": torch.float32}
    narrow = dict.fromkeys(("lengths", "node_limits", "chains", "is_seeded"), torch.int32)
    per_session = {name: Field(shape=(size.sessions,), dtype=dtype) for name, dtype in (wide | narrow).items()}
    return per_session | {"block_tables": Field(shape=(size.sessions, size.pages), dtype=torch.int32)}


def _trees(size: DraftSize) -> dict[str, Field]:
    shape = size.sessions, size.nodes
    return {
        "token_ids": Field(shape=shape, dtype=torch.int32),
        "parents": Field(shape=shape, dtype=torch.int32),
        "log_probs": Field(shape=shape, dtype=torch.float32),
        "counts": Field(shape=(size.sessions,), dtype=torch.int32),
    }


def _hidden_states(model: DraftModel, size: DraftSize) -> dict[str, Field]:
    shape = size.sessions, model.config.block_size - 1, model.config.hidden_size
    return {"hidden_states": Field(shape=shape, dtype=model.placement.dtype)}
