"""What the interpreted kernels' tests share."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray


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
