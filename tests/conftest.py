"""Set before torch or triton is imported anywhere: no test reaches out, kernels run in Triton's interpreter.

Not so under `make test-gpu`, where they run on the first card.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

os.environ["HF_HUB_OFFLINE"] = "1"
# A shell starts what runs in the background with Ctrl-C ignored, which services that tests press it at would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Of `make test-gpu`.
ON_GPU = os.environ.get("DRAFTWOOD_TEST_DEVICE") == "cuda"
if not ON_GPU:
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


@pytest.fixture
def rows_multiplied_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's `tl.dot` adds up every row the same way, wherever the row stands in its tile.

    A matrix unit does. The interpreter asks NumPy, whose BLAS on some CPUs gives a tile's last rows other bits than its
    first: a test of a kernel's row invariance would then judge the BLAS.
    """

    def matmul(a: NDArray[Any], b: NDArray[Any], dtype: DTypeLike = None) -> NDArray[Any]:
        product = np.zeros((*a.shape[:-1], b.shape[-1]), dtype or np.result_type(a, b))
        for inner in range(a.shape[-1]):
            product += a[..., inner, None].astype(product.dtype) * b[..., inner, None, :].astype(product.dtype)
        return product

    monkeypatch.setattr(np, "matmul", matmul)
