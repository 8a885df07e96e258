"""The bad drafter's trees are valid; only their tokens are worth nothing."""

import numpy as np
import pytest

from draftwood.bench.drafters import RandomEngine, engine_maker
from draftwood.models import embedded_pair
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.session import DraftParams, Shape
from draftwood_wire.tree import check_tree


@pytest.fixture(scope="module")
def engine() -> RandomEngine:
    pair = embedded_pair()
    return RandomEngine(DraftEngine(load_draft_model(pair.target, pair.drafter), context_pages=1, page_size=16))


@pytest.mark.parametrize("shape", [Shape.CHAIN, Shape.TREE])
def test_random_trees_are_valid(engine: RandomEngine, shape: Shape) -> None:
    vocab_size, deepest = engine.model.vocab_size, engine.model.config.block_size - 1
    for session_id in range(20):
        engine.open(session_id, [5, 6, 7], DraftParams(shape=shape, node_limit=16), decoding=True)
    drafts, faults = engine.draft(engine.ready())
    assert len(drafts) == 20
    assert not faults
    for draft in drafts:
        check_tree(draft.tree, vocab_size=vocab_size, node_limit=16, max_depth=deepest)
        assert len(draft.tree) == (deepest if shape is Shape.CHAIN else 16)
        if shape is Shape.CHAIN:
            assert np.array_equal(draft.tree.parents, np.arange(deepest))
    assert not engine.ready()
    engine.close_all()


@pytest.mark.parametrize("kind", ["fast", "slow", "slow:", "slow:x"])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="neither 'random' nor 'slow:MILLISECONDS'"):
        engine_maker(kind)
