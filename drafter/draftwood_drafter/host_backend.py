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

# Rows of a block that a further thread is taken for: it is dear to start, and with few rows the target and the services
# beside it have more use for its core. On two cores, a second one made drafts for 64 sessions take 35 ms instead of 57
# and the whole service at that load 12 % faster; for 8 it was no gain.
ROWS_A_THREAD = 128
# Bounds the copy of context that one step makes (sessions * longest context): larger batches run in groups.
MAX_GATHERED_COLUMNS = 32_768


class HostBackend:
    """A DraftBackend."""

    def __init__(self, model: DraftModel, cache: ContextCache) -> None:
        self._model = model
        self._cache = cache
        self._most_threads = torch.get_num_threads()

    @property
    def device_s(self) -> float:
        return 0.0

    def write(self, pieces: list[ContextPiece]) -> None:
        features = np.concatenate([p.features for p in pieces])
        ranges = [(p, p.start, p.start + len(p.features)) for p in pieces]
        positions = np.concatenate([np.arange(start, stop) for _, start, stop in ranges])
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
        rows = len(group) * self._model.config.block_size
        with _threads(min(self._most_threads, max(1, rows // ROWS_A_THREAD))):
            hidden = self.hidden_states(group)
            return self._with_trees(hidden, group) if self._model.has_head else _with_hidden_states(hidden, group)

    def hidden_states(self, sessions: list[Session]) -> torch.Tensor:
        """Final hidden states of the blocks' slots 1 …: [S, block size - 1, hidden]."""
        lengths = [len(s.tokens) - 1 for s in sessions]
        context = self._cache.gather([s.table for s in sessions], lengths, self._model.config.block_size)
        return self._model.block_hidden([s.tokens[-1] for s in sessions], lengths, context)

    def _with_trees(self, hidden: torch.Tensor, group: list[Session]) -> list[Draft | None]:
        trees = build_trees(self._model.logits(hidden.flatten(0, 1)), group)
        return [
            None if tree is None else Draft(session_id=session.session_id, base_len=len(session.tokens), tree=tree)
            for session, tree in zip(group, trees, strict=True)
        ]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch's threads are so many here."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _with_hidden_states(hidden: torch.Tensor, group: list[Session]) -> list[Draft | None]:
    drafts: list[Draft | None] = []
    for session, of_session in zip(group, hidden, strict=True):
        # A tree of N nodes has no node deeper than N.
        rows = of_session[: session.nodes_wanted].numpy()
        draft = Draft(session_id=session.session_id, base_len=len(session.tokens), hidden_states=rows)
        drafts.append(draft if np.isfinite(rows).all() else None)
    return drafts
