"""The ways of decoding that a run compares."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood import tuning
from draftwood.measurement import Mode

PLAIN, CHAIN, AUTO = "plain", "chain", "auto"
TREE_PREFIX = "tree-"


@dataclass(frozen=True, kw_only=True)
class BenchMode:
    """`node_limit` 0 takes the server's default."""

    name: str
    speculation: Mode
    node_limit: int

    @property
    def fixed(self) -> bool:
        """The request decides, not the server."""
        return self.speculation != "auto"


def tree(nodes: int) -> BenchMode:
    return BenchMode(name=f"{TREE_PREFIX}{nodes}", speculation="tree", node_limit=nodes)


def bench_modes(names: Sequence[str], tree_nodes: Sequence[int]) -> list[BenchMode]:
    """Modes by name, `tree` once for every size. Raises ValueError for a name that is none."""
    modes: list[BenchMode] = []
    for name in names:
        if name == "tree":
            modes += map(tree, tree_nodes)
        elif name == PLAIN:
            modes.append(BenchMode(name=PLAIN, speculation="off", node_limit=0))
        elif name == CHAIN:
            modes.append(BenchMode(name=CHAIN, speculation="chain", node_limit=tuning.NODE_LIMIT))
        elif name == AUTO:
            modes.append(BenchMode(name=AUTO, speculation="auto", node_limit=0))
        else:
            raise ValueError(f"mode {name!r} is not one of plain, chain, tree, auto")
    return modes
