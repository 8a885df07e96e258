"""How many nodes a step looks at, by mode. `auto` is the formula of the node budget:

    N* = argmax over N of (B + sum of the N best scores in the batch) / (C(B + N) + wait),   N = 0 without a wait

over powers of two and all nodes at hand; N = 0 is the plain step.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwood.simulation.acceptance import DraftTree, RoundKind, best_first, chain
from draftwood.simulation.profile import Profile


@dataclass(frozen=True, kw_only=True)
class SimulatedMode:
    """One tree a kind of round; no trees is plain decoding. `fixed` looks at whole trees, whatever they cost."""

    name: str
    trees: tuple[DraftTree, ...]
    fixed: bool

    def usual_tree(self, shares: Sequence[float]) -> DraftTree:
        """Scores of a tree whose kind is not known yet."""
        total = sum(shares)
        scores = [
            sum(share * score for share, score in zip(shares, at_node, strict=True)) / total
            for at_node in itertools.zip_longest(*(tree.scores for tree in self.trees), fillvalue=0.0)
        ]
        return DraftTree(scores=tuple(scores), children=())


def simulated_mode(name: str, profile: Profile) -> SimulatedMode:
    """plain, chain, tree-N or auto. Raises ValueError for anything else."""
    if name == "plain":
        return SimulatedMode(name=name, trees=(), fixed=True)
    if name == "chain":
        return _mode(name, profile, chain, profile.node_limit, fixed=True)
    if name == "auto":
        return _mode(name, profile, best_first, profile.node_limit, fixed=False)
    kind, _, nodes = name.partition("-")
    if kind == "tree" and nodes.isdecimal() and int(nodes) > 0:
        return _mode(name, profile, best_first, int(nodes), fixed=True)
    raise ValueError(f"mode {name!r} is not one of plain, chain, tree-N, auto")


def _mode(
    name: str, profile: Profile, grow: Callable[[RoundKind, int], DraftTree], nodes: int, *, fixed: bool
) -> SimulatedMode:
    return SimulatedMode(name=name, trees=tuple(grow(kind, nodes) for kind in profile.acceptance), fixed=fixed)


def node_budget(trees: Sequence[DraftTree], cost: Callable[[int], float], wait_s: float) -> int:
    """N*; `cost(rows)` is the step's, `trees` has one tree for each session in it."""
    sessions = len(trees)
    scores = sorted((score for tree in trees for score in tree.scores), reverse=True)
    best, best_rate, gained = 0, sessions / cost(sessions), 0.0
    for nodes, score in enumerate(scores, start=1):
        gained += score
        if nodes & (nodes - 1) == 0 or nodes == len(scores):
            rate = (sessions + gained) / (cost(sessions + nodes) + wait_s)
            if rate > best_rate:
                best, best_rate = nodes, rate
    return best


def allocate(trees: Sequence[DraftTree], nodes: int) -> list[int]:
    """The `nodes` best nodes of the batch, as how many of each tree's first ones."""
    ranked = sorted(((-score, number) for number, tree in enumerate(trees) for score in tree.scores))
    counts = [0] * len(trees)
    for _, number in ranked[:nodes]:
        counts[number] += 1
    return counts
