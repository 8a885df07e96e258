"""All trees of a batch walked in one launch, one program a tree.

Shapes: R rows, T trees, N nodes of all trees, P places of a path. A tree's root is row `first_rows[t]`, its node i
(from 1) the i-th row after it, as in `reference.TreeWalk`; its nodes are entries `offsets[t]` to `offsets[t + 1]`.
"""

# mypy: disable-error-code="import-untyped,untyped-decorator"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from draftwood_kernels.specialisation import Specialisation

_MOST_NODES = 256
_FEWEST_NODES = 16


@dataclass(frozen=True, kw_only=True)
class FlatTrees:
    """Parents are nodes of their own tree: 0 its root, i its entry i - 1. All int32."""

    first_rows: torch.Tensor  # [T]
    offsets: torch.Tensor  # [T + 1]
    token_ids: torch.Tensor  # [N]
    parents: torch.Tensor  # [N]


@dataclass(frozen=True, kw_only=True)
class WalkedPaths:
    """The nodes that a walk visits and the token drawn at each; the last is the bonus. All int32."""

    nodes: torch.Tensor  # [T, P]
    tokens: torch.Tensor  # [T, P]
    lengths: torch.Tensor  # [T], from 1


def walk_sampled(sampled: torch.Tensor, trees: FlatTrees, most_nodes: int, paths: WalkedPaths) -> None:
    """sampled int32 [R]: the token drawn at each row -> fills `paths`; places past a path's length stay as they are.

    `most_nodes` bounds the nodes of a tree. A path that P cannot hold is cut there: P = most_nodes + 1 holds any.
    """
    if not 0 <= most_nodes <= _MOST_NODES:
        raise ValueError(f"most_nodes: {most_nodes} is outside 0..{_MOST_NODES}")
    places = paths.nodes.shape[1]
    if paths.nodes.stride() != (places, 1) or paths.tokens.stride() != (places, 1):
        raise ValueError("paths: nodes and tokens have to be contiguous")
    if places < 1:
        raise ValueError("paths: no place for the root")
    count = len(trees.first_rows)
    if count:
        tensors = (sampled, trees.first_rows, trees.offsets, trees.token_ids, trees.parents)
        out = (paths.nodes, paths.tokens, paths.lengths)
        block = triton.next_power_of_2(max(most_nodes, _FEWEST_NODES))
        walk_kernel[(count,)](*tensors, *out, places, BLOCK=block, num_warps=1)


@triton.jit
def walk_kernel(
    sampled_ptr: tl.tensor,
    first_row_ptr: tl.tensor,
    offset_ptr: tl.tensor,
    token_ptr: tl.tensor,
    parent_ptr: tl.tensor,
    path_node_ptr: tl.tensor,
    path_token_ptr: tl.tensor,
    length_ptr: tl.tensor,
    places: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    tree = tl.program_id(0).to(tl.int64)
    row = tl.load(first_row_ptr + tree)
    first = tl.load(offset_ptr + tree)
    count = tl.load(offset_ptr + tree + 1) - first
    entries = tl.arange(0, BLOCK)
    inside = entries < count
    tokens = tl.load(token_ptr + first + entries, mask=inside, other=0)
    parents = tl.load(parent_ptr + first + entries, mask=inside, other=-1)
    node = row * 0
    length = row * 0
    # A node has one parent and the root none, so whatever the parents say no node comes twice: the walk ends.
    while (node >= 0) & (length < places):
        token = tl.load(sampled_ptr + row + node)
        tl.store(path_node_ptr + tree * places + length, node)
        tl.store(path_token_ptr + tree * places + length, token)
        length += 1
        # Of twins the later, like the reference.
        node = tl.max(tl.where((parents == node) & (tokens == token), entries + 1, -1), axis=0)
    tl.store(length_ptr + tree, length)


_POINTERS = (
    "sampled_ptr",
    "first_row_ptr",
    "offset_ptr",
    "token_ptr",
    "parent_ptr",
    "path_node_ptr",
    "path_token_ptr",
    "length_ptr",
)

SPECIALISATIONS: list[Specialisation] = [
    Specialisation(
        kernel=walk_kernel,
        name=f"up to {block} nodes",
        signature=dict.fromkeys(_POINTERS, "*i32") | {"places": "i32"},
        constexprs={"BLOCK": block},
        num_warps=1,
        num_stages=1,
    )
    for block in (16, 32, 64, 128, 256)
]
