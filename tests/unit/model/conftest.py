from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from draftwood_verifier.runner import Runner, load_runner
from tests.kernels.conftest import poisoned_memory
from tests.unit.model.targets import PAGE_SIZE, Oracle, write_target

__all__ = ["poisoned_memory"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Variant -> its checkpoint folder, written once."""
    return cache(lambda variant: write_target(variant, tmp_path_factory.mktemp(variant)))


@pytest.fixture(scope="session")
def oracle(target: Callable[[str], Path]) -> Callable[[str], Oracle]:
    return cache(lambda variant: Oracle(target(variant)))


@pytest.fixture
def runner(target: Callable[[str], Path]) -> Callable[[str], Runner]:
    """Variant -> a runner with 64 pages whose unwritten slots are poison."""

    def make(variant: str) -> Runner:
        runner = load_runner(target(variant), pages=64, page_size=PAGE_SIZE)
        runner._pool.pages.fill_(torch.nan)
        return runner

    return make


@pytest.fixture
def plain_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 weights stay as they are, as on a GPU."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
