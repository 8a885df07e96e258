"""What the launches and buffers of a step depend on, and the few sizes that steps are padded to."""

from dataclasses import dataclass

import numpy as np

from draftwood_kernels.tree_attention.paged_layout import WORD_BITS
from draftwood_verifier.plan import StepPlan

# Trees are as many nodes at most, with a root above them, or one row alone.
_TREE_ROWS = (1, 17, 65, 257)
# The shortest prefix that a step is sized for: one split of the attention's keys.
_PREFIX = 1024


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """All are bounds: what is really there, the buffers say."""

    rows: int
    segments: int
    logits: int
    walks: int
    table_pages: int
    prefix_len: int
    tree_rows: int  # of the largest segment that branches, root included; 1 where none does
    depth: int  # positions of the longest path of a segment's own rows
    places: int  # of the longest walk: a root and the nodes of a tree
    truncates: bool  # some draw knows top-k, top-p or min-p

    @property
    def words(self) -> int:
        """Of ancestor bits a row."""
        return -(-self.tree_rows // WORD_BITS)


def size_of(plan: StepPlan) -> StepSize:
    """The exact size."""
    sizes = np.diff(plan.row_offsets)
    locals_ = np.arange(len(plan.parents)) - np.repeat(plan.row_offsets[:-1], sizes)
    bent = np.flatnonzero(plan.parents != locals_ - 1)
    branching = np.searchsorted(plan.row_offsets, bent, side="right") - 1
    return StepSize(
        rows=len(plan.token_ids),
        segments=len(plan.prefix_lens),
        logits=len(plan.logit_rows),
        walks=len(plan.walks),
        table_pages=max((len(table) for table in plan.block_tables), default=0),
        prefix_len=int(plan.prefix_lens.max(initial=0)),
        tree_rows=int(sizes[branching].max(initial=1)),
        depth=int(sizes.max(initial=0)),
        places=max((1 + len(walk.tree) for walk in plan.walks), default=1),
        truncates=any(walk.sampling.truncates and not walk.sampling.is_greedy for walk in plan.walks),
    )


def padded(size: StepSize) -> StepSize:
    """The size of the graph that runs steps of this size, in which every row is a logit row."""
    rows = _padded_rows(size.rows)
    return StepSize(
        rows=rows,
        segments=_power(size.segments),
        logits=rows,
        walks=_power(size.walks),
        table_pages=_power(size.table_pages),
        prefix_len=max(_PREFIX, _power(size.prefix_len)),
        tree_rows=_tree_rows(size.tree_rows),
        depth=_tree_rows(size.depth),
        places=_tree_rows(size.places),
        truncates=size.truncates,
    )


def _padded_rows(rows: int) -> int:
    """Powers of two and the numbers half way between them: a third of the rows at most is padding."""
    power = _power(rows)
    return power * 3 // 4 if power >= 8 and rows <= power * 3 // 4 else power


def _power(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def _tree_rows(rows: int) -> int:
    return next((bound for bound in _TREE_ROWS if rows <= bound), _power(rows))
