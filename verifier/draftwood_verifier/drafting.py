"""Which drafter drafts for which session, and what becomes of the trees they send.

A drafter that dies or gives up costs speed only: its sessions decode plainly at once and move to another drafter.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.build_tree import TreeWish
from draftwood_verifier.backlog import Backlog, Update
from draftwood_verifier.budget.policy import Ask, Batch, Policy
from draftwood_verifier.commit import Commit
from draftwood_verifier.plan import DraftPlan
from draftwood_verifier.sequence import Draft, Drafter, DraftMode, HiddenStates, Sequence
from draftwood_verifier.step_features import Rows, StepFeatures
from draftwood_wire.errors import MalformedTree
from draftwood_wire.tree import TokenTree, check_tree

# Features that a session that is not drafted for holds back at most; then its drafter takes them in.
HELD_LIMIT_BYTES = 4 * 1024 * 1024
# Sessions that are drafted for to see what drafting would give.
_PROBED = 8


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
    @property
    def lacks_head(self) -> bool:
        """It sends hidden states in the place of trees."""

    @property
    def sending(self) -> bool:
        """Some of its frames are not on the wire yet."""

    def send_opened(self, sequence: Sequence, tokens: list[int], features_from: int) -> None: ...
    def send_features(self, session_id: int, start: int, features: NDArray[np.float32]) -> None: ...
    def send_updates(self, updates: list[Update]) -> None: ...
    def send_closed(self, session_id: int) -> None: ...


@dataclass(slots=True)
class DraftCounters:
    refused: int = 0  # broke the format or the rules
    stale: int = 0  # about a length, or a session, that has passed
    rerooted: int = 0  # about an earlier length, and still of use


class DrafterPool:
    """All connected drafters and the sessions they have."""

    def __init__(self, policy: Policy, *, vocab_size: int, wait_s: float, rejection: bool = False) -> None:
        """`rejection`: trees of sampled requests are drawn, and weighed against what they were drawn from."""
        self.policy = policy
        self.links: list[DrafterLink] = []
        self.counters = DraftCounters()
        self._vocab_size = vocab_size
        self._wait_s = wait_s
        self._rejection = rejection

    @property
    def sending(self) -> bool:
        return any(link.sending for link in self.links)

    def join(self, link: DrafterLink, running: Iterable[Sequence]) -> None:
        """A drafter is there: it gets every running session that has none."""
        self.links.append(link)
        self.policy.drafters_changed()
        self._assign(running)

    def leave(self, link: DrafterLink, running: Iterable[Sequence]) -> None:
        """A drafter is gone: others get its sessions."""
        if link not in self.links:
            return
        self.links.remove(link)
        self.policy.drafters_changed()
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
        backlog = Backlog(list(sequence.tokens), features_from=sequence.computed, prefilled=sequence.prefilled)
        lagging = sequence.prefilled or link.late
        draft = sequence.draft = Draft(
            link, backlog=backlog, node_limit=node_limit, lagging=lagging, group=_smaller_group(link)
        )
        link.sessions[sequence.session_id] = sequence
        if self._in_demand(sequence):
            self._introduce(link, sequence, draft)
            if sequence.prefilled:
                draft.ask(len(sequence.tokens), time.monotonic(), size=1, wait_s=self._wait_s)

    def close(self, sequence: Sequence) -> None:
        """The session has ended: its drafter frees what it holds."""
        link, draft = self.link_of(sequence), sequence.draft
        if link is not None and draft is not None:
            sequence.draft = None
            del link.sessions[sequence.session_id]
            if draft.backlog.opened:
                link.send_closed(sequence.session_id)

    def give_up(self, link: DrafterLink, session_id: int) -> None:
        """The drafter can't draft for this session: it decodes plainly from now on."""
        sequence = link.sessions.pop(session_id, None)
        if sequence is not None:
            sequence.draft = None
            sequence.undraftable = True

    def hold_chunk(
        self, sequence: Sequence, start: int, features: NDArray[np.float32], *, urgent: bool = False
    ) -> None:
        """Features of a chunk; they go out at once when they are urgent, too many, or the session is drafted for."""
        link, draft = self.link_of(sequence), sequence.draft
        if link is None or draft is None:
            return
        draft.backlog.hold_chunk(start, features)
        if draft.backlog.size_bytes > HELD_LIMIT_BYTES:
            urgent = True
            if not draft.backlog.opened:
                self._introduce(link, sequence, draft)
        if draft.backlog.opened and (urgent or self._in_demand(sequence)):
            self._send_chunks(link, sequence, draft)

    def hold_commits(self, commits: list[Commit], features: StepFeatures) -> None:
        """Tokens and features, of the rows of all commits, of one drafter's sessions."""
        first = 0
        for commit in commits:
            own = Rows(features, first, len(commit.rows))
            first += own.count
            assert commit.sequence.draft is not None, "a session without a drafter has nobody to tell"
            commit.sequence.draft.backlog.hold_tokens(commit.round, commit.tokens, own, commit.nodes_verified)

    def ask(self, commits: list[Commit], batch_of_all: Callable[[], Batch]) -> None:
        """Tell the drafters what they should know after these commits, and ask them for trees.

        `batch_of_all`: those and whoever else decodes in the next round; to be counted only where it matters.
        """
        auto = [c for c in commits if c.sequence.adaptive]
        verdict, wait_s, round_size, nodes = Ask.NOTHING, 0.0, 1, None
        if auto and not self.policy.sleep_on(len(auto)):
            batch = batch_of_all()
            verdict = self.policy.next_ask(batch)
            if verdict is Ask.DRAFT:
                # Those that get their first token now are few of a round, and their first trees the worst.
                wait_s, round_size = self.policy.wait_limit_s(batch.auto, self._wait_s), batch.auto
                nodes = self.policy.nodes_wanted(batch.auto)
        chosen = [c for c in commits if not c.sequence.adaptive]
        if verdict is Ask.DRAFT:
            chosen = commits
        elif verdict is Ask.PROBE:
            probed = _spread(sorted(auto, key=_held_bytes))
            chosen, round_size = chosen + probed, len(probed)
        now = time.monotonic()
        for commit in chosen:
            _draft_of(commit).ask(
                commit.base_len + len(commit.tokens),
                now,
                size=len(chosen),
                wait_s=wait_s if commit.sequence.adaptive else self._wait_s,
                round_size=round_size,
                nodes=nodes if commit.sequence.adaptive else None,
                probing=commit.sequence.adaptive and verdict is Ask.PROBE,
            )
        crowded = [c for c in auto if verdict is not Ask.DRAFT and _held_bytes(c) > HELD_LIMIT_BYTES]
        self._tell(chosen, [c for c in crowded if c not in chosen])

    def committed(self, sequence: Sequence) -> None:
        """The commit is part of the session's tokens now."""
        if sequence.draft is not None:
            sequence.draft.committed(len(sequence.tokens))

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
        elif not self._acceptable(sequence, sequence.draft, link, base_len, tree):
            self._refuse(sequence.draft)
        elif self._is_timely(link, sequence):
            self._use(sequence, sequence.draft, base_len, tree, time.monotonic())

    def propose_hidden(
        self, link: DrafterLink, session_id: int, base_len: int, rows: NDArray[np.float32] | None
    ) -> None:
        """The same for hidden states [depths, hidden], which `build_trees` will turn into a tree; None: unusable."""
        sequence = link.sessions.get(session_id)
        if sequence is None or sequence.draft is None:
            self.counters.stale += 1
            return
        draft, length = sequence.draft, len(sequence.tokens)
        if rows is None or not sequence.prompt_len <= base_len <= length:
            self._refuse(draft)
        elif self._is_timely(link, sequence):
            if draft.hidden_states is not None:
                self.counters.stale += 1
            draft.hidden_states = HiddenStates(base_len, rows[: draft.node_limit], time.monotonic())
            draft.answered = draft.answered or base_len == length

    def build_trees(self, sequences: Iterable[Sequence], build: Callable[[DraftPlan], list[TokenTree | None]]) -> None:
        """Make trees of the hidden states that have come for these sessions, all of them in one call."""
        waiting = [(s, s.draft, s.draft.hidden_states) for s in sequences if s.draft and s.draft.hidden_states]
        if not waiting:
            return
        plan = DraftPlan(
            hidden_states=np.concatenate([states.rows for _, _, states in waiting]),
            wishes=[_wish(*each) for each in waiting],
        )
        row = 0
        for (sequence, draft, states), tree in zip(waiting, build(plan), strict=True):
            draft.hidden_states = None
            if tree is None:
                self._refuse(draft)
            else:
                self._use(sequence, draft, states.base_len, tree, states.came_at)
                if self._rejection and sequence.sampling.temperature > 0:
                    # Of a tree for an earlier length only what lies below the tokens since is left.
                    draft.draft_row = row + len(sequence.tokens) - states.base_len
            row += len(states.rows)

    def link_of(self, sequence: Sequence) -> DrafterLink | None:
        if sequence.draft is None:
            return None
        return next(link for link in self.links if link is sequence.draft.drafter)

    def _assign(self, running: Iterable[Sequence]) -> None:
        for sequence in running:
            if sequence.draft is None:
                self.open(sequence)

    def _refuse(self, draft: Draft) -> None:
        self.counters.refused += 1
        draft.answered = True  # no point in waiting for a better one

    def _is_timely(self, link: DrafterLink, sequence: Sequence) -> bool:
        link.late = False
        if not sequence.prefilled:
            self.counters.stale += 1  # a guess about the first token, which prefill is about to give
        return sequence.prefilled

    def _use(self, sequence: Sequence, draft: Draft, base_len: int, tree: TokenTree, came_at: float) -> None:
        if sequence.adaptive:
            self.policy.saw_tree(tree, sampled=sequence.sampling.temperature > 0, asked=draft.round_size)
        if base_len == len(sequence.tokens):
            draft.tree, draft.rerooted, draft.answered, draft.lagging = tree, False, True, False
            draft.answered_at = came_at
        else:
            self._take_late(sequence, draft, base_len, tree, came_at)

    def _take_late(self, sequence: Sequence, draft: Draft, base_len: int, tree: TokenTree, came_at: float) -> None:
        since = sequence.tokens[base_len:]
        self.policy.calibration.observe(tree, since, sampled=sequence.sampling.temperature > 0)
        below = tree.descend(since)
        if below is None or len(below) == 0:
            self.counters.stale += 1
        else:
            self.counters.rerooted += 1
            if not draft.answered:
                draft.tree, draft.rerooted = below, True  # until the answer about the current length comes
        took_s = draft.late_answer(base_len, came_at, self._wait_s)
        if sequence.adaptive and took_s is not None:
            self.policy.saw_late_answer(draft.ask_size, took_s, came_at)

    def _in_demand(self, sequence: Sequence) -> bool:
        return not sequence.adaptive or self.policy.speculating

    def _introduce(self, link: DrafterLink, sequence: Sequence, draft: Draft) -> None:
        draft.backlog.opened = True
        link.send_opened(sequence, draft.backlog.first_tokens, draft.backlog.features_from)

    def _send_chunks(self, link: DrafterLink, sequence: Sequence, draft: Draft) -> None:
        for start, features in draft.backlog.take_chunks():
            link.send_features(sequence.session_id, start, features)

    def _tell(self, asked: list[Commit], crowded: list[Commit]) -> None:
        """Send all that is held back for these sessions, and ask for trees for the first ones."""
        for link in self.links:
            updates: list[Update] = []
            for commit in (*asked, *crowded):
                sequence, draft = commit.sequence, _draft_of(commit)
                if draft.drafter is not link:
                    continue
                if not draft.backlog.opened:
                    self._introduce(link, sequence, draft)
                self._send_chunks(link, sequence, draft)
                wanted = draft.nodes_wanted if draft.asked_len == commit.base_len + len(commit.tokens) else 0
                updates += draft.backlog.take_updates(sequence.session_id, wanted)
            if updates:
                link.send_updates(updates)

    def _acceptable(self, sequence: Sequence, draft: Draft, link: DrafterLink, base_len: int, tree: TokenTree) -> bool:
        if not sequence.prompt_len <= base_len <= len(sequence.tokens):
            return False
        try:
            check_tree(tree, vocab_size=self._vocab_size, node_limit=draft.node_limit, max_depth=link.max_depth)
        except MalformedTree:
            return False
        return sequence.mode is not DraftMode.CHAIN or tree.parents.tolist() == list(range(len(tree)))


def _draft_of(commit: Commit) -> Draft:
    draft = commit.sequence.draft
    assert draft is not None, "only sessions with a drafter are told of"
    return draft


def _wish(sequence: Sequence, draft: Draft, states: HiddenStates) -> TreeWish:
    """What the drafter would have built, had it the head."""
    return TreeWish(
        depths=len(states.rows),
        position=states.base_len,
        is_chain=sequence.mode is DraftMode.CHAIN,
        node_limit=draft.nodes_wanted,
        temperature=sequence.sampling.temperature,
        seed=sequence.sampling.seed,
    )


def _spread(commits: list[Commit]) -> list[Commit]:
    """Some from everywhere in the list: sessions that have just begun are harder to draft for than the rest."""
    step = max(1, len(commits) // _PROBED)
    return commits[step // 2 :: step][:_PROBED]


def _held_bytes(commit: Commit) -> int:
    return _draft_of(commit).backlog.size_bytes


def _smaller_group(link: DrafterLink) -> int:
    groups = [s.draft.group for s in link.sessions.values() if s.draft is not None]
    return int(2 * sum(groups) < len(groups))
