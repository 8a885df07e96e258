"""One flat forward over all sessions, as plain integer arrays.

Rows are grouped in *segments*, one a session (a replay segment may be a second one of the same session). Every segment
is a tree over its own rows on top of a paged prefix: a plain row is a root alone, a draft is root + nodes, a prefill
chunk is a chain. A row sees the first `prefix_len` tokens of its segment's pages, its ancestors in the segment, itself.
Rows land in scratch; only what a `CommitPlan` names ever enters the pages.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.build_tree import TreeWish
from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.step_features import StepFeatures
from draftwood_wire.tree import TokenTree


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Sampling of one segment, from its root down the tree."""

    segment: int
    first_logit: int  # index into logit_rows of the first sampled row: the root, or a chunk's last row
    root_row: int  # absolute row index of that row
    tree: TokenTree  # its nodes are the logit rows after the root, in order; EMPTY_TREE for plain and prefill
    position: int  # absolute position of the first token to draw: the root's position + 1
    sampling: SamplingParams  # seed set
    # Row of the last `build_trees` that the nodes at depth 1 were drawn from; the next depth's row comes after it. The
    # walk weighs target against draft then. -1: it draws by seed and position, and looks for a node with that token.
    draft_row: int = -1


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Everything that one forward needs to know."""

    token_ids: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows]
    row_offsets: NDArray[np.int32]  # [segments + 1]
    prefix_lens: NDArray[np.int32]  # [segments] tokens of the pages that every row of the segment sees
    block_tables: list[NDArray[np.int32]]  # per segment: KV page ids that cover at least prefix_len tokens
    parents: NDArray[np.int32]  # [rows] relative to the segment's first row; -1 hangs on the prefix
    logit_rows: NDArray[np.int32]  # [logits] absolute row indices, ascending, whose logits are wanted
    walks: list[Walk]  # one per segment that samples
    # [rows], for plain rows queued behind others: the walk of the step before that draws the row's token, which
    # token_ids can't know.
    drawn: NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class Path:
    """What one walk drew: m tokens, of which the last is the bonus."""

    tokens: list[int]
    rows: list[int]  # m absolute row indices: the root, then the accepted nodes; their KV and features are valid


@dataclass(frozen=True, kw_only=True)
class CommitPlan:
    """Rows whose KV moves from scratch into the pages."""

    rows: NDArray[np.int32]  # [k] scratch rows
    slots: NDArray[np.int32]  # [k] page_id * page_size + offset


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """Final hidden states of drafts that are to become trees."""

    hidden_states: NDArray[np.float32]  # [rows, hidden]: every wish's depths, one wish after the other
    wishes: list[TreeWish]  # seeds set


class Runner(Protocol):
    """The target model behind the engine; `runner.py` has the real one."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int:
        """Decoder layers, of which features can be had."""

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and completion together."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def device_s(self) -> float:
        """Seconds that the last `execute` took the GPU by its own clock; 0 on a CPU."""

    def set_feature_layers(self, layer_ids: tuple[int, ...]) -> None:
        """Which layers' outputs later `execute` calls keep, ascending."""

    def execute(self, plan: StepPlan) -> list[Path]:
        """Forward, sampling and walks: one Path per plan.walks."""

    def commit(self, plan: CommitPlan) -> None:
        """Move rows of the last `execute` from scratch into the pages."""

    def build_trees(self, plan: DraftPlan) -> list[TokenTree | None]:
        """The tree of each wish, by the target's head; None where the logits are not finite."""

    def features(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        """Outputs of `layer_ids` for rows of the last `execute`: [rows, len(layer_ids) * hidden]."""

    def features_later(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> StepFeatures:
        """The same, to be read at any time."""


@runtime_checkable
class AheadRunner(Protocol):
    """What a runner has besides, if a step of plain rows can be queued while the one before it runs."""

    def launch(self, plan: StepPlan) -> None:
        """Queue plain rows; they may be drawn by the last launch, which then is the only one not collected yet."""

    def collect(self) -> list[Path]:
        """Wait for the first launch that was not collected: its paths, and `features` and `commit` are about it."""
