"""One request as the drafter sees it: its tokens, how much context is held, and how to draft for it."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from draftwood_drafter.context_cache import PageTable
from draftwood_drafter.coverage import Coverage
from draftwood_kernels.sample import gumbel


class Shape(Enum):
    """What a session is drafted with."""

    OFF = "off"
    CHAIN = "chain"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class DraftParams:
    """How to draft. A seed at temperature > 0 means: perturb with the noise that the verifier will draw with."""

    shape: Shape
    node_limit: int
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class FeatureRows:
    """Target hidden states float32 [rows, layers * hidden] of the positions start, start + 1, …"""

    session_id: int
    start: int
    features: NDArray[np.float32]


class SessionFault(Exception):
    """This one session can't be drafted for; the message goes to the verifier."""

    def __init__(self, session_id: int, reason: str, *, out_of_pages: bool = False) -> None:
        super().__init__(reason)
        self.session_id = session_id
        self.reason = reason
        self.out_of_pages = out_of_pages


@dataclass(kw_only=True)
class Session:
    """Mutable; only the engine changes it. `tokens` are the committed ones, the last of them is the root."""

    session_id: int
    tokens: list[int]
    params: DraftParams
    # False until the first token after the prompt is known: a prompt's own last token is no root to draft from.
    decoding: bool
    coverage: Coverage = field(default_factory=Coverage)
    table: PageTable = field(default_factory=PageTable)
    # Nodes of the next tree at most; 0 when none is wanted.
    nodes_wanted: int = 0
    # Length that the newest tree hangs on; 0 before the first.
    drafted_len: int = 0
    # Gumbel rows [vocab] by position, kept while the position may be drafted again.
    noise: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Context covers exactly the positions before the root, and the root has not been drafted from yet."""
        length = len(self.tokens)
        return (
            self.decoding
            and self.nodes_wanted > 0
            and self.drafted_len != length
            and self.coverage.is_exactly(length - 1)
        )

    def noise_row(self, position: int, vocab_size: int) -> NDArray[np.float32]:
        """Noise [vocab] at a position after the root; what was drawn for a rejected depth is wanted again next round.

        Only for a session that has a seed.
        """
        assert self.params.seed is not None, "noise without a seed"
        if position not in self.noise:
            self.noise = {p: row for p, row in self.noise.items() if p >= len(self.tokens)}
            self.noise[position] = gumbel(self.params.seed, position, vocab_size)
        return self.noise[position]
