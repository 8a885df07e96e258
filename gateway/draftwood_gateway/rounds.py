"""The verifier's rounds as a client that asks for them sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Round:
    """Fields as in the wire's RoundReport, the tree as its three arrays."""

    number: int
    base_len: int
    node_ids: list[int]
    parents: list[int]
    log_probs: list[float]
    path: list[int]
    token_ids: list[int]
    draft_wait_ms: float
    verify_ms: float

    @property
    def kind(self) -> Literal["prefill", "plain", "speculative"]:
        if self.number == 0:
            return "prefill"
        return "speculative" if self.node_ids else "plain"


@dataclass(frozen=True, kw_only=True)
class TextRound:
    """A round with the text of every node and of every committed token, each decoded on its own."""

    round: Round
    node_texts: list[str]
    token_texts: list[str]


def with_texts(entry: Round, text_of: Callable[[int], str]) -> TextRound:
    return TextRound(
        round=entry,
        node_texts=[text_of(token_id) for token_id in entry.node_ids],
        token_texts=[text_of(token_id) for token_id in entry.token_ids],
    )
