"""Services that a test may break: a stack for each test."""

from collections.abc import Iterator

import pytest

from tests.services.processes import Services, embedded_options, running_services


@pytest.fixture
def services() -> Iterator[Services]:
    with running_services(embedded_options()) as running:
        yield running


@pytest.fixture
def plain_services() -> Iterator[Services]:
    """No drafter anywhere."""
    with running_services(embedded_options(with_drafter=False)) as running:
        yield running
