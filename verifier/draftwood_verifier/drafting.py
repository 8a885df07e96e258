"""Which drafter drafts for which session, and what becomes of the trees they send.

A drafter that dies or gives up costs speed only: its sessions decode plainly at once and move to another drafter.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftwood_verifier.commit import Commit
from draftwood_verifier.sequence import Draft, Drafter, DraftMode, Sequence
from draftwood_wire.errors import MalformedTree
from draftwood_wire.tree import TokenTree, check_tree


class DrafterLink(Drafter, Protocol):
    """The way to one connected drafter. No method blocks or raises; a link that fails takes itself out later."""

    drafter_id: str
    sessions: dict[int, Sequence]

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Decoder layers whose outputs it wants, in its order."""

    @property
    def node_limit(self) -> int: ...
    @property
    def max_depth(self) -> int: ...

    def send_opened(self, sequence: Sequence, features_from: int) -> None: ...
    def send_features(self, session_id: int, start: int, features: NDArray[np.float32]) -> None: ...
    def send_commits(self, commits: list[Commit], features: NDArray[np.float32]) -> None: ...
    def send_closed(self, session_id: int) -> None: ...


@dataclass(slots=True)
class DraftCounters:
    refused: int = 0  # broke the format or the rules
    stale: int = 0  # about a length, or a session, that has passed
    rerooted: int = 0  # about an earlier length, and still of use


class DrafterPool:
    """All connected drafters and the sessions they have."""

    def __init__(self, *, vocab_size: int, wait_s: float) -> None:
        self.links: list[DrafterLink] = []
        self.counters = DraftCounters()
        self._vocab_size = vocab_size
        self._wait_s = wait_s

    def join(self, link: DrafterLink, running: Iterable[Sequence]) -> None:
        """A drafter is there: it gets every running session that has none."""
        self.links.append(link)
        self._assign(running)

    def leave(self, link: DrafterLink, running: Iterable[Sequence]) -> None:
        """A drafter is gone: others get its sessions."""
        if link not in self.links:
            return
        self.links.remove(link)
        for sequence in link.sessions.values():
            sequence.draft = None
        link.sessions.clear()
        self._assign(running)

    def open(self, sequence: Sequence) -> None:
        """Give a session to the drafter that has the fewest, of those that answer."""
        if not self.links or not sequence.wants_draft:
            return
        link = min(self.links, key=lambda candidate: (candidate.late, len(candidate.sessions)))
        node_limit = min(sequence.node_limit, link.node_limit)
        # Handed over half-way, a session has to catch up first, and nobody waits for that, nor for a drafter that is
        # stuck. With a prefix hit it can catch up while the rest of the prompt is computed.
        start = sequence.computed
        sequence.draft = Draft(
            link, features_from=start, node_limit=node_limit, lagging=sequence.prefilled or link.late
        )
        link.sessions[sequence.session_id] = sequence
        link.send_opened(sequence, start)
        if sequence.prefilled:
            self.committed(sequence)

    def close(self, sequence: Sequence) -> None:
        """The session has ended: its drafter frees what it holds."""
        link = self.link_of(sequence)
        if link is not None:
            sequence.draft = None
            del link.sessions[sequence.session_id]
            link.send_closed(sequence.session_id)

    def give_up(self, link: DrafterLink, session_id: int) -> None:
        """The drafter can't draft for this session: it decodes plainly from now on."""
        sequence = link.sessions.pop(session_id, None)
        if sequence is not None:
            sequence.draft = None
            sequence.undraftable = True

    def committed(self, sequence: Sequence) -> None:
        """The session's drafter was told of all its tokens."""
        if sequence.draft is not None:
            sequence.draft.committed(len(sequence.tokens), time.monotonic(), self._wait_s)

    def ask_replay(self, link: DrafterLink, session_id: int, from_position: int) -> None:
        sequence = link.sessions.get(session_id)
        if sequence is None or sequence.draft is None:
            self.counters.stale += 1
        elif not sequence.draft.ask_replay(from_position):
            self.counters.refused += 1

    def propose(self, link: DrafterLink, session_id: int, base_len: int, tree: TokenTree) -> None:
        """Take a tree from a peer that is not trusted: use it, re-root it, or drop and count it."""
        sequence = link.sessions.get(session_id)
        if sequence is None or sequence.draft is None:
            self.counters.stale += 1
            return
        draft, length = sequence.draft, len(sequence.tokens)
        if not self._acceptable(sequence, draft, link, base_len, tree):
            self.counters.refused += 1
            draft.answered = True  # no point in waiting for a better one
            return
        link.late = False
        if not sequence.prefilled:
            self.counters.stale += 1  # a guess about the first token, which prefill is about to give
        elif base_len == length:
            draft.tree, draft.answered, draft.lagging = tree, True, False
            draft.answered_at = time.monotonic()
        else:
            self._reroot(sequence, draft, base_len, tree)

    def link_of(self, sequence: Sequence) -> DrafterLink | None:
        if sequence.draft is None:
            return None
        return next(link for link in self.links if link is sequence.draft.drafter)

    def _assign(self, running: Iterable[Sequence]) -> None:
        for sequence in running:
            if sequence.draft is None:
                self.open(sequence)

    def _reroot(self, sequence: Sequence, draft: Draft, base_len: int, tree: TokenTree) -> None:
        below = tree.descend(sequence.tokens[base_len:])
        if below is None or len(below) == 0:
            self.counters.stale += 1
        else:
            self.counters.rerooted += 1
            if not draft.answered:
                draft.tree = below  # until the answer about the current length comes
        draft.late_answer(base_len, time.monotonic(), self._wait_s)

    def _acceptable(self, sequence: Sequence, draft: Draft, link: DrafterLink, base_len: int, tree: TokenTree) -> bool:
        if not sequence.prompt_len <= base_len <= len(sequence.tokens):
            return False
        try:
            check_tree(tree, vocab_size=self._vocab_size, node_limit=draft.node_limit, max_depth=link.max_depth)
        except MalformedTree:
            return False
        return sequence.mode is not DraftMode.CHAIN or tree.parents.tolist() == list(range(len(tree)))
