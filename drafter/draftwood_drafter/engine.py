"""Drafts for many sessions: keeps their tokens and context, runs one draft step for all that are ready.

Nothing here knows gRPC. A session that can't go on is closed at once and reported as a SessionFault; the others are
untouched.
"""

from collections.abc import Callable

import numpy as np
import torch

from draftwood_drafter.backend import ContextPiece, Draft, DraftBackend
from draftwood_drafter.context_cache import ContextCache, OutOfPages
from draftwood_drafter.device_backend import DeviceBackend
from draftwood_drafter.host_backend import HostBackend
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import DraftParams, FeatureRows, Session, SessionFault, Shape


def choose_backend(model: DraftModel, cache: ContextCache) -> DraftBackend:
    """By where the model is. Raises Incompatible for a model that can't be served there."""
    return DeviceBackend(model, cache) if model.placement.is_gpu else HostBackend(model, cache)


class DraftEngine:
    def __init__(
        self,
        model: DraftModel,
        *,
        context_pages: int,
        page_size: int,
        make_backend: Callable[[DraftModel, ContextCache], DraftBackend] = choose_backend,
    ) -> None:
        self.model = model
        self.cache = ContextCache(
            pages=context_pages,
            page_size=page_size,
            layers=model.config.num_hidden_layers,
            kv_heads=model.config.num_key_value_heads,
            head_dim=model.config.head_dim,
            placement=model.placement,
        )
        self._backend = make_backend(model, self.cache)
        self._sessions: dict[int, Session] = {}

    @property
    def device_s(self) -> float:
        """See `DraftBackend.device_s`."""
        return self._backend.device_s

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
        pieces: list[ContextPiece] = []
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
            self._backend.write(pieces)
        return faults

    def ready(self) -> list[Session]:
        """Sessions whose newest root has not been drafted from and whose context is complete."""
        return [s for s in self._sessions.values() if s.params.shape is not Shape.OFF and s.is_ready]

    @torch.inference_mode()
    def draft(self, sessions: list[Session]) -> tuple[list[Draft], list[SessionFault]]:
        """One draft for each session, which must be ready; in as few steps as the backend makes of them."""
        drafts: list[Draft] = []
        faults: list[SessionFault] = []
        fitting = [s for s in sessions if self._fits_context(s, faults)]
        for group in self._backend.groups(fitting):
            self._draft_group(group, drafts, faults)
        for fault in faults:
            self.close(fault.session_id)
        return drafts, faults

    def _draft_group(self, group: list[Session], drafts: list[Draft], faults: list[SessionFault]) -> None:
        for session, draft in zip(group, self._backend.draft(group), strict=True):
            if draft is None:
                faults.append(SessionFault(session.session_id, "the draft is not finite"))
            else:
                session.drafted_len = draft.base_len
                drafts.append(draft)

    def _place(self, session: Session, rows: FeatureRows) -> list[ContextPiece]:
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
            ContextPiece(
                session_id=session.session_id,
                table=session.table,
                start=start,
                features=rows.features[start - rows.start : stop - rows.start],
            )
            for start, stop in gaps
        ]

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
