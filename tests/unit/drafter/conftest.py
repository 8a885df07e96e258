from collections.abc import Iterator

import pytest
import torch

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.model import DraftModel
from tests.unit.drafter.pair import Pair, make_pair


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def model(pair: Pair) -> DraftModel:
    return load_draft_model(pair.target, pair.draft)


@pytest.fixture
def engine(model: DraftModel) -> Iterator[DraftEngine]:
    """A small engine whose ledger must be whole after every test."""
    engine = DraftEngine(model, context_pages=64, page_size=4)
    yield engine
    engine.cache.check_ledger()
    engine.close_all()
    assert engine.cache.pages_free == engine.cache.pages_total
