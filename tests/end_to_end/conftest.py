"""Three real services on the embedded pair, started once for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.services.processes import Services, embedded_options, running_services


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    with running_services(embedded_options()) as running:
        yield running
