"""Drafts on the CPU, by torch: context is gathered side by side, and trees grow on the host."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from draftwood_drafter.backend import ContextPiece, Draft
from draftwood_drafter.context_cache import ContextCache
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import Session
from draftwood_drafter.tree_builder import build_trees

# Products (rows times weights) that a thread is worth: with fewer, the target and the services beside it have more use
# for its core. On two cores, with 2.1 million weights, a second one made drafts of 64 blocks of 8 rows take 35 ms, not
# 57, and the whole service at that load a tenth faster; for 8 blocks it was no gain, and to take in the context of 64
# took twice as long.
PRODUCTS_A_THREAD = 250_000_000
# Bounds the copy of context that one step makes (sessions * longest context): larger batches run in groups.
MAX_GATHERED_COLUMNS = 32_768


class HostBackend:
    """A DraftBackend."""

    def __init__(self, model: DraftModel, cache: ContextCache) -> None:
        self._model = model
        self._cache = cache
        self._most_threads = torch.get_num_threads()
        self._block_row, self._context_row = _block_products(model), _context_products(model)

    @property
    def device_s(self) -> float:
        return 0.0

    def write(self, pieces: list[ContextPiece]) -> None:
        features = np.concatenate([p.features for p in pieces])
        ranges = [(p, p.start, p.start + len(p.features)) for p in pieces]
        positions = np.concatenate([np.arange(start, stop) for _, start, stop in ranges])
        with self._threads_for(len(features) * self._context_row):
            rows = self._model.context_rows(torch.from_numpy(features), torch.from_numpy(positions))
        self._cache.write(np.concatenate([p.table.slots[start:stop] for p, start, stop in ranges]), rows)

    def groups(self, sessions: list[Session]) -> list[list[Session]]:
        """Sessions of similar length together, so that padding stays small and a group within its bound."""
        groups: list[list[Session]] = []
        for session in sorted(sessions, key=lambda s: len(s.tokens)):
            if groups and (len(groups[-1]) + 1) * len(session.tokens) <= MAX_GATHERED_COLUMNS:
                groups[-1].append(session)
            else:
                groups.append([session])
        return groups

    def draft(self, group: list[Session]) -> list[Draft | None]:
        with self._threads_for(len(group) * self._model.config.block_size * self._block_row):
            hidden = self.hidden_states(group)
            return self._with_trees(hidden, group) if self._model.has_head else _with_hidden_states(hidden, group)

    def hidden_states(self, sessions: list[Session]) -> torch.Tensor:
        """Final hidden states of the blocks' slots 1 …: [S, block size - 1, hidden]."""
        lengths = [len(s.tokens) - 1 for s in sessions]
        context = self._cache.gather([s.table for s in sessions], lengths, self._model.config.block_size)
        return self._model.block_hidden([s.tokens[-1] for s in sessions], lengths, context)

    @contextmanager
    def _threads_for(self, products: int) -> Iterator[None]:
        """torch has as many threads here as so much work is worth."""
        before = torch.get_num_threads()
        torch.set_num_threads(min(self._most_threads, max(1, products // PRODUCTS_A_THREAD)))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _with_trees(self, hidden: torch.Tensor, group: list[Session]) -> list[Draft | None]:
        trees = build_trees(self._model.logits(hidden.flatten(0, 1)), group)
        return [
            None if tree is None else Draft(session_id=session.session_id, base_len=len(session.tokens), tree=tree)
            for session, tree in zip(group, trees, strict=True)
        ]


def _context_products(model: DraftModel) -> int:
    """Weights that a row of context meets."""
    c = model.config
    keys_values = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim
    return c.hidden_size * (model.feature_width + keys_values)


def _block_products(model: DraftModel) -> int:
    """Weights that a row of a block meets: the layers' linears and the head."""
    c = model.config
    attention = 2 * (c.num_attention_heads + c.num_key_value_heads) * c.head_dim * c.hidden_size
    layers = c.num_hidden_layers * (attention + 3 * c.hidden_size * c.intermediate_size)
    return layers + (model.vocab_size * c.hidden_size if model.has_head else 0)


def _with_hidden_states(hidden: torch.Tensor, group: list[Session]) -> list[Draft | None]:
    drafts: list[Draft | None] = []
    for session, of_session in zip(group, hidden, strict=True):
        # A tree of N nodes has no node deeper than N.
        rows = of_session[: session.nodes_wanted].numpy()
        draft = Draft(session_id=session.session_id, base_len=len(session.tokens), hidden_states=rows)
        drafts.append(draft if np.isfinite(rows).all() else None)
    return drafts
