"""What a session's drafter has not been told yet.

While a session is drafted for, everything goes out at once. While it is not, tokens and features wait here, so that
plain decoding does not pay for a drafter that nobody asks; a later draft gets them all in one go.
"""

from dataclasses import dataclass

import numpy as np

from draftwood_verifier.step_features import Features, Rows


@dataclass(frozen=True, kw_only=True)
class Update:
    """Tokens that continue what the drafter knows of a session, and the features of the rows they were drawn at.

    features [rows, layers * hidden] are of positions base_len - 1 and on; none for the token that prefill gave.
    """

    session_id: int
    round: int
    base_len: int
    tokens: list[int]
    features: Features
    nodes_verified: int
    nodes_wanted: int


class Backlog:
    """One session's; positions grow without gaps."""

    def __init__(self, tokens: list[int], *, features_from: int, prefilled: bool) -> None:
        self.opened = False
        self.size_bytes = 0
        self.first_tokens = tokens  # as SessionOpened says them
        self.features_from = features_from
        self._first_token: list[int] = []  # what prefill gave, which has no row of its own here
        self._told = len(tokens)
        self._prefilled = prefilled
        self._tokens: list[int] = []
        self._chunks: list[tuple[int, Features]] = []
        self._rows: list[Rows] = []
        self._round = 0
        self._nodes_verified = 0

    @property
    def is_current(self) -> bool:
        """Nothing is held but the last commit."""
        return len(self._rows) <= 1 and not self._chunks

    def hold_chunk(self, start: int, features: Features) -> None:
        """Features of positions start and on, of a prefill or replay chunk."""
        self._chunks.append((start, features))
        self.size_bytes += features.nbytes

    def hold_tokens(self, round_: int, tokens: list[int], rows: Rows, nodes_verified: int) -> None:
        """A commit of this session."""
        if not self._prefilled:
            self._prefilled = True
            self._first_token = list(tokens)
            return
        self._tokens += tokens
        self._rows.append(rows)
        self._round = round_
        self._nodes_verified = nodes_verified
        self.size_bytes += rows.size_bytes

    def take_chunks(self) -> list[tuple[int, Features]]:
        chunks, self._chunks = self._chunks, []
        self.size_bytes -= sum(features.nbytes for _, features in chunks)
        return chunks

    def take_updates(self, session_id: int, nodes_wanted: int) -> list[Update]:
        """All that is held of tokens, in at most two pieces; the last one asks for the draft."""
        updates = []
        if self._first_token:
            updates.append(self._update(session_id, 0, self._first_token, [], 0, 0 if self._tokens else nodes_wanted))
        if self._tokens:
            updates.append(
                self._update(session_id, self._round, self._tokens, self._rows, self._nodes_verified, nodes_wanted)
            )
        self.size_bytes -= sum(rows.size_bytes for rows in self._rows)
        self._first_token, self._tokens, self._rows = [], [], []
        return updates

    def _update(
        self,
        session_id: int,
        round_: int,
        tokens: list[int],
        rows: list[Rows],
        nodes_verified: int,
        nodes_wanted: int,
    ) -> Update:
        base_len, self._told = self._told, self._told + len(tokens)
        return Update(
            session_id=session_id,
            round=round_,
            base_len=base_len,
            tokens=tokens,
            features=_joined([each.read() for each in rows]),
            nodes_verified=nodes_verified,
            nodes_wanted=nodes_wanted,
        )


def _joined(pieces: list[Features]) -> Features:
    if len(pieces) == 1:  # a commit that is told at once
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros((0, 0), np.float32)
