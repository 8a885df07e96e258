from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.unit.doctor.kimi import write_kimi_k2
from tests.unit.model.targets import write_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Variant -> its checkpoint folder, written once."""
    return cache(lambda variant: write_target(variant, tmp_path_factory.mktemp(variant)))


@pytest.fixture(scope="session")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a target and a draft of Kimi-K2's sizes, of which only the headers take room."""
    return write_kimi_k2(tmp_path_factory.mktemp("kimi"))
