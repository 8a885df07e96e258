"""What tests of kernels share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh memory is NaN, or the largest integer: what nobody wrote is seen, whoever reads it. Random numbers are the
    same in every test."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
