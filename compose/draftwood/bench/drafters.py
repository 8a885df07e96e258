"""`python -m draftwood.bench.drafters random|slow:MS OPTIONS...`: a drafter that is wrong or late, with every option
of `python -m draftwood_drafter`. Speculation with it must not cost speed.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable

import numpy as np

from draftwood_checkpoint.errors import CheckpointError
from draftwood_drafter.__main__ import make_engine, serve
from draftwood_drafter.backend import Draft
from draftwood_drafter.config import DrafterConfig, parse_config
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.session import FeatureRows, Session, SessionFault, Shape
from draftwood_wire.errors import DraftwoodError
from draftwood_wire.tree import TokenTree

_SEED = 0


class RandomEngine(DraftEngine):
    """Valid trees of random tokens and shapes, with confident scores. No model runs: what they cost is theirs alone."""

    def __init__(self, engine: DraftEngine) -> None:
        super().__init__(engine.model, context_pages=1, page_size=1)
        self._draws = np.random.default_rng(_SEED)

    def append(self, batch: list[FeatureRows]) -> list[SessionFault]:  # noqa: ARG002 - it needs no context
        return []

    def ready(self) -> list[Session]:
        return [
            s
            for s in self._sessions.values()
            if s.params.shape is not Shape.OFF and s.decoding and s.drafted_len != len(s.tokens)
        ]

    def draft(self, sessions: list[Session]) -> tuple[list[Draft], list[SessionFault]]:
        drafts = []
        for session in sessions:
            session.drafted_len = len(session.tokens)
            drafts.append(Draft(session_id=session.session_id, base_len=session.drafted_len, tree=self._tree(session)))
        return drafts, []

    def _tree(self, session: Session) -> TokenTree:
        deepest = self.model.config.block_size - 1
        chain = session.params.shape is Shape.CHAIN
        nodes = min(session.params.node_limit, deepest if chain else session.params.node_limit)
        depths, parents = [0], []
        for node in range(nodes):
            open_nodes = [node] if chain else [n for n, depth in enumerate(depths) if depth < deepest]
            parents.append(int(self._draws.choice(open_nodes)))
            depths.append(depths[parents[-1]] + 1)
        return TokenTree(
            # All different, so that no parent has two children of one token.
            token_ids=self._draws.choice(self.model.vocab_size, nodes, replace=False).astype(np.int32),
            parents=np.array(parents, np.int32),
            log_probs=-0.01 * np.arange(1, nodes + 1, dtype=np.float32),
        )


class SlowEngine(DraftEngine):
    """Real trees, each draft `delay_s` later than it could be."""

    def __init__(self, engine: DraftEngine, config: DrafterConfig, delay_s: float) -> None:
        super().__init__(engine.model, context_pages=config.context_pages, page_size=config.page_size)
        self._delay_s = delay_s

    def draft(self, sessions: list[Session]) -> tuple[list[Draft], list[SessionFault]]:
        time.sleep(self._delay_s)
        return super().draft(sessions)


def engine_maker(kind: str) -> Callable[[DrafterConfig], DraftEngine]:
    """Raises ValueError when `kind` is neither `random` nor `slow:MS`."""
    name, _, delay_ms = kind.partition(":")
    if kind == "random":
        return lambda config: RandomEngine(make_engine(config))
    if name == "slow" and delay_ms.isdecimal():
        return lambda config: SlowEngine(make_engine(config), config, int(delay_ms) / 1000)
    raise ValueError(f"drafter {kind!r} is neither 'random' nor 'slow:MILLISECONDS'")


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        asyncio.run(serve(parse_config(sys.argv[2:]), engine_maker(sys.argv[1])))
    except (DraftwoodError, CheckpointError, ValueError) as error:
        sys.exit(f"draftwood.bench.drafters: {error}")


if __name__ == "__main__":
    main()
