"""The one record of what a session commits in a round; KV, features, text, usage and cache keys all read it."""

from dataclasses import dataclass

from draftwood_verifier.plan import Path
from draftwood_verifier.sequence import FinishReason, Sequence
from draftwood_wire.tree import TokenTree


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """`rows` are the step's rows at positions base_len - 1 and on, as many as tokens; none after prefill.

    `nodes` are the nodes of `tree` on the path, as many as tokens: nodes[i] is where tokens[i] was drawn, 0 the root.
    """

    sequence: Sequence
    round: int  # 0 is the token that prefill gave
    base_len: int
    tokens: list[int]
    rows: list[int]
    cut: int  # drawn tokens that were thrown away because the request had ended before them
    tree: TokenTree  # what the target looked at
    draft: TokenTree | None  # all that the drafter proposed for this very length
    nodes: list[int]
    has_drafter: bool
    asked_at: float  # time.monotonic when a draft for this round was asked for, and when it came; 0 when it was not
    answered_at: float
    waited: bool  # the round had to wait for the draft, or for its time to run out
    behind: bool  # the drafter had more than the last commit to take in first
    finish_reason: FinishReason | None

    @property
    def nodes_verified(self) -> int:
        return len(self.tree)


def decide(sequence: Sequence, path: Path, *, tree: TokenTree) -> Commit:
    """Cut a drawn path where the request ends: at a stop token or at its length limit, the stop token first."""
    base_len = len(sequence.tokens)
    prefilled = sequence.prefilled
    draft = sequence.draft
    kept, finish_reason = _end(path.tokens, sequence.stop_ids, sequence.length_limit - base_len)
    return Commit(
        sequence=sequence,
        round=sequence.rounds + 1 if prefilled else 0,
        base_len=base_len,
        tokens=path.tokens[:kept],
        rows=path.rows[:kept] if prefilled else [],
        cut=len(path.tokens) - kept,
        tree=tree,
        draft=draft.tree if draft and not draft.rerooted else None,
        nodes=[row - path.rows[0] for row in path.rows[:kept]],
        has_drafter=draft is not None,
        asked_at=draft.asked_at if draft and draft.asked_len == base_len else 0.0,
        answered_at=draft.answered_at if draft and draft.asked_len == base_len else 0.0,
        waited=draft is not None and draft.held_up,
        behind=draft is not None and draft.behind,
        finish_reason=finish_reason,
    )


def apply(commit: Commit) -> None:
    """Bring the session's tokens and counters up to date; its pages are the caller's business."""
    sequence = commit.sequence
    sequence.tokens += commit.tokens
    if commit.round == 0:
        return
    sequence.rounds = commit.round
    sequence.computed = len(sequence.tokens) - 1
    if commit.nodes_verified:
        sequence.speculative_rounds += 1
        sequence.proposed_nodes += commit.nodes_verified
        # One token a round is what plain decoding gives; so completion = 1 + rounds + accepted, cut or not.
        sequence.accepted_nodes += len(commit.tokens) - 1


def _end(tokens: list[int], stop_ids: frozenset[int], room: int) -> tuple[int, FinishReason | None]:
    for index, token in enumerate(tokens[:room]):
        if token in stop_ids:
            return index + 1, FinishReason.STOP
    if len(tokens) >= room:
        return room, FinishReason.LENGTH
    return len(tokens), None
