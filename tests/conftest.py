"""Set before torch or triton is imported anywhere: no test reaches out, kernels run in Triton's interpreter."""

import os
from collections.abc import Iterator

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRITON_INTERPRET"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests want everybody to read, by `record_property("said", ...)`: it comes through from other processes."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "said":
                terminalreporter.write_line(str(value))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured step costs of the tests' targets stay with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
