"""What the engine asks of whatever computes: context into the cache, and drafts for sessions that are ready."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftwood_drafter.context_cache import PageTable
from draftwood_drafter.session import Session
from draftwood_wire.tree import EMPTY_TREE, TokenTree


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
class ContextPiece:
    """Feature rows float32 [rows, layers * hidden] of positions start, start + 1, … that the cache does not hold yet.

    `table` has pages for them.
    """

    session_id: int
    table: PageTable
    start: int
    features: NDArray[np.float32]


class DraftBackend(Protocol):
    """Called in torch's inference mode, by one thread. Checks nothing: what reaches it fits model and cache."""

    @property
    def device_s(self) -> float:
        """Seconds that `draft` has taken the GPU so far, by its own clock; 0 on a CPU."""

    def write(self, pieces: list[ContextPiece]) -> None:
        """Put rows into the cache, of which no two are of the same position of a session."""

    def groups(self, sessions: list[Session]) -> list[list[Session]]:
        """The same sessions, those together that one draft step takes."""

    def draft(self, group: list[Session]) -> list[Draft | None]:
        """One draft step for one group: a draft for each, None where it is not finite."""
