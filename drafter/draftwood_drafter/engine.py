"""Drafts for many sessions: keeps their tokens and context, runs one draft step for all that are ready.

Nothing here knows gRPC. A session that can't go on is closed at once and reported as a SessionFault; the others are
untouched.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_drafter.context_cache import ContextCache, OutOfPages
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import DraftParams, FeatureRows, Session, SessionFault, Shape
from draftwood_drafter.tree_builder import build_trees
from draftwood_wire.tree import EMPTY_TREE, TokenTree

# Bounds the copy of context that one step makes (sessions * longest context): larger batches run in groups.
MAX_GATHERED_COLUMNS = 32_768


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A tree that hangs on the first base_len committed tokens of a session.

    hidden_states [depths, hidden] in its stead, when the verifier has the head.
    """

    session_id: int
    base_len: int
    tree: TokenTree = EMPTY_TREE
    hidden_states: NDArray[np.float32] | None = None


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Feature rows that the cache does not hold yet, and where they go; slots int64 [rows]."""

    session_id: int
    start: int
    features: NDArray[np.float32]
    slots: NDArray[np.int64]


class DraftEngine:
    def __init__(self, model: DraftModel, *, context_pages: int, page_size: int) -> None:
        self.model = model
        self.cache = ContextCache(
            pages=context_pages,
            page_size=page_size,
            layers=model.config.num_hidden_layers,
            kv_heads=model.config.num_key_value_heads,
            head_dim=model.config.head_dim,
        )
        self._sessions: dict[int, Session] = {}

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def holds(self, session_id: int) -> bool:
        return session_id in self._sessions

    def session(self, session_id: int) -> Session | None:
        """A live session, to read."""
        return self._sessions.get(session_id)

    def open(self, session_id: int, tokens: list[int], params: DraftParams, *, decoding: bool) -> None:
        """Start a session; one of the same id is forgotten first. Raises SessionFault."""
        self.close(session_id)
        self._check_tokens(session_id, tokens)
        if not tokens:
            raise SessionFault(session_id, "token_ids: empty")
        self._sessions[session_id] = Session(
            session_id=session_id,
            tokens=list(tokens),
            params=params,
            decoding=decoding,
            nodes_wanted=params.node_limit,
        )

    def close(self, session_id: int) -> None:
        """Forget a session and free its pages; unknown ids are fine."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.cache.release(session.table)

    def close_all(self) -> None:
        for session_id in list(self._sessions):
            self.close(session_id)

    def commit(self, session_id: int, base_len: int, tokens: list[int], nodes_wanted: int | None = None) -> None:
        """Append committed tokens; the next tree has at most `nodes_wanted` nodes, and 0 is no tree.

        Raises SessionFault, after closing, when they do not continue what is known.
        """
        session = self._sessions[session_id]
        try:
            if base_len != len(session.tokens):
                raise SessionFault(session_id, f"base_len: {base_len}, {len(session.tokens)} tokens are known")
            self._check_tokens(session_id, tokens)
        except SessionFault:
            self.close(session_id)
            raise
        session.tokens += tokens
        session.decoding = True
        limit = session.params.node_limit
        session.nodes_wanted = limit if nodes_wanted is None else min(nodes_wanted, limit)

    @torch.inference_mode()
    def append(self, batch: list[FeatureRows]) -> list[SessionFault]:
        """Write the rows that are not held yet into the sessions' pages, in one model call for the whole batch.

        Rows of unknown sessions are ignored. Sessions with rows that can't be stored are closed and returned.
        """
        pieces: list[_Piece] = []
        faults = []
        for rows in batch:
            session = self._sessions.get(rows.session_id)
            if session is None or session.params.shape is Shape.OFF:
                continue
            try:
                pieces += self._place(session, rows)
            except SessionFault as fault:
                self.close(rows.session_id)
                faults.append(fault)
        # A closed session's pages may already be another's.
        pieces = [piece for piece in pieces if self.holds(piece.session_id)]
        if pieces:
            self._write(pieces)
        return faults

    def ready(self) -> list[Session]:
        """Sessions whose newest root has not been drafted from and whose context is complete."""
        return [s for s in self._sessions.values() if s.params.shape is not Shape.OFF and s.is_ready]

    @torch.inference_mode()
    def draft(self, sessions: list[Session]) -> tuple[list[Draft], list[SessionFault]]:
        """One draft for each session, which must be ready; in as few model calls as MAX_GATHERED_COLUMNS allows."""
        drafts: list[Draft] = []
        faults: list[SessionFault] = []
        fitting = [s for s in sessions if self._fits_context(s, faults)]
        for group in _groups(fitting):
            self._draft_group(group, drafts, faults)
        for fault in faults:
            self.close(fault.session_id)
        return drafts, faults

    def hidden_states(self, sessions: list[Session]) -> torch.Tensor:
        """Final hidden states of the blocks' slots 1 …: [S, block size - 1, hidden]."""
        lengths = [len(s.tokens) - 1 for s in sessions]
        context = self.cache.gather([s.table for s in sessions], lengths, self.model.config.block_size)
        return self.model.block_hidden([s.tokens[-1] for s in sessions], lengths, context)

    def _draft_group(self, group: list[Session], drafts: list[Draft], faults: list[SessionFault]) -> None:
        hidden = self.hidden_states(group)
        made = self._with_trees(hidden, group) if self.model.has_head else _with_hidden_states(hidden, group)
        for session, draft in zip(group, made, strict=True):
            if draft is None:
                faults.append(SessionFault(session.session_id, "the draft is not finite"))
            else:
                session.drafted_len = draft.base_len
                drafts.append(draft)

    def _with_trees(self, hidden: torch.Tensor, group: list[Session]) -> list[Draft | None]:
        trees = build_trees(self.model.logits(hidden.flatten(0, 1)), group)
        return [
            None if tree is None else Draft(session_id=session.session_id, base_len=len(session.tokens), tree=tree)
            for session, tree in zip(group, trees, strict=True)
        ]

    def _place(self, session: Session, rows: FeatureRows) -> list[_Piece]:
        """Check rows, take pages for them, and mark them as held."""
        self._check_rows(session, rows)
        stop = rows.start + len(rows.features)
        try:
            self.cache.reserve(session.table, stop)
        except OutOfPages as error:
            raise SessionFault(session.session_id, f"no room for context: {error}", out_of_pages=True) from error
        gaps = session.coverage.missing(rows.start, stop)
        session.coverage.add(rows.start, stop)
        return [
            _Piece(
                session_id=session.session_id,
                start=start,
                features=rows.features[start - rows.start : stop - rows.start],
                slots=session.table.slots[start:stop],
            )
            for start, stop in gaps
        ]

    def _write(self, pieces: list[_Piece]) -> None:
        features = np.concatenate([p.features for p in pieces])
        positions = np.concatenate([np.arange(p.start, p.start + len(p.features)) for p in pieces])
        rows = self.model.context_rows(torch.from_numpy(features), torch.from_numpy(positions))
        self.cache.write(np.concatenate([p.slots for p in pieces]), rows)

    def _check_rows(self, session: Session, rows: FeatureRows) -> None:
        width = self.model.feature_width
        if rows.features.ndim != 2 or rows.features.shape[1] != width:
            raise SessionFault(session.session_id, f"features: shape {rows.features.shape}, [rows, {width}] wanted")
        stop = rows.start + len(rows.features)
        if stop > len(session.tokens):
            raise SessionFault(
                session.session_id, f"features: reach position {stop - 1}, {len(session.tokens)} tokens are known"
            )
        if not np.isfinite(rows.features).all():
            raise SessionFault(session.session_id, "features: not finite")

    def _check_tokens(self, session_id: int, tokens: list[int]) -> None:
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.model.vocab_size:
            raise SessionFault(session_id, f"token_ids: an id outside 0..{self.model.vocab_size - 1}")

    def _fits_context(self, session: Session, faults: list[SessionFault]) -> bool:
        end = len(session.tokens) - 1 + self.model.config.block_size
        if end <= self.model.context_limit:
            return True
        reason = f"a block at position {len(session.tokens) - 1} ends beyond the draft's {self.model.context_limit}"
        faults.append(SessionFault(session.session_id, reason))
        return False


def _with_hidden_states(hidden: torch.Tensor, group: list[Session]) -> list[Draft | None]:
    drafts: list[Draft | None] = []
    for session, of_session in zip(group, hidden, strict=True):
        # A tree of N nodes has no node deeper than N.
        rows = of_session[: session.nodes_wanted].numpy()
        draft = Draft(session_id=session.session_id, base_len=len(session.tokens), hidden_states=rows)
        drafts.append(draft if np.isfinite(rows).all() else None)
    return drafts


def _groups(sessions: list[Session]) -> list[list[Session]]:
    """Sessions of similar length together, so that padding stays small and a group within its bound."""
    groups: list[list[Session]] = []
    for session in sorted(sessions, key=lambda s: len(s.tokens)):
        if groups and (len(groups[-1]) + 1) * len(session.tokens) <= MAX_GATHERED_COLUMNS:
            groups[-1].append(session)
        else:
            groups.append([session])
    return groups
