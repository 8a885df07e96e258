"""Blocks over paged contexts: kernel, interpreted, and reference against a softmax over a row's own keys in float64."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from draftwood_kernels.block_attention import BlockLayout, block_attention, check_heads, kernel

PAGE_SIZE = 4
# A softmax of a few dozen keys, accumulated in float32; 16-bit numbers round weights and results to 11 and 8 bits.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
RULES = [(False, None), (True, None), (False, 5), (True, 5), (False, 12), (True, 40)]
Attend = Callable[..., torch.Tensor]


class Blocks:
    """Blocks of B random rows behind contexts of these lengths, on scattered pages of the second of three layers.

    Every slot without context is poisoned; behind a table's end stands a page that does not exist.
    """

    def __init__(
        self,
        lengths: list[int],
        block_size: int,
        *,
        group: int = 2,
        kv_heads: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(len(lengths) + sum(lengths))

        def normal(rows: int, heads: int) -> torch.Tensor:
            return torch.randn(rows, heads, head_dim, generator=generator).to(dtype)

        rows = len(lengths) * block_size
        self.lengths, self.block_size = lengths, block_size
        self.queries, self.fresh = normal(rows, group * kv_heads), normal(rows, 2 * kv_heads)
        self.contexts = [normal(length, 2 * kv_heads) for length in lengths]
        counts = [-(-length // PAGE_SIZE) for length in lengths]
        order = np.random.default_rng(rows).permutation(sum(counts) + 2).astype(np.int32)
        tables = np.full((len(lengths), max(counts) + 1), 2**30, np.int32)
        cache = torch.full((len(order) * PAGE_SIZE, 3, 2, kv_heads, head_dim), torch.nan, dtype=dtype)
        for row, pages, of_session in zip(tables, np.split(order, np.cumsum(counts)), self.contexts, strict=False):
            row[: len(pages)] = pages
            positions = np.arange(len(of_session))
            slots = row[positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
            cache[torch.from_numpy(slots), 1] = of_session.unflatten(1, (2, kv_heads))
        self.layer = cache[:, 1].flatten(1, 2)
        self.layout = BlockLayout(
            lengths=torch.tensor(lengths, dtype=torch.int32),
            block_tables=torch.from_numpy(tables),
            page_size=PAGE_SIZE,
        )

    def check(self, attend: Attend, *, is_causal: bool, window: int | None) -> None:
        out = attend(self.queries, self.fresh, self.layer, self.layout, is_causal=is_causal, window=window)
        tolerance = TOLERANCES[out.dtype]
        for session in range(len(self.lengths)):
            rows = slice(session * self.block_size, (session + 1) * self.block_size)
            expected = self._dense(session, rows, is_causal=is_causal, window=window)
            torch.testing.assert_close(out[rows].double(), expected, rtol=tolerance, atol=tolerance)

    def _dense(self, session: int, rows: slice, *, is_causal: bool, window: int | None) -> torch.Tensor:
        length, queries = self.lengths[session], self.queries[rows].double()
        keys, values = torch.cat([self.contexts[session], self.fresh[rows]]).double().transpose(0, 1).chunk(2)
        mask = torch.full((self.block_size, length + self.block_size), -torch.inf, dtype=torch.float64)
        for row in range(self.block_size):
            behind = length + row - np.arange(length + self.block_size)
            seen = (behind >= 0) | (not is_causal)
            mask[row, seen & (np.abs(behind) < (window or len(behind) + 1))] = 0
        grouped = queries.unflatten(1, (len(keys), -1)).permute(1, 2, 0, 3)
        weights = torch.softmax(grouped @ keys[:, None].mT / queries.shape[2] ** 0.5 + mask, dim=-1)
        return (weights @ values[:, None]).permute(2, 0, 1, 3).flatten(1)


@pytest.mark.parametrize(("is_causal", "window"), RULES)
def test_unequal_contexts_in_one_launch(is_causal: bool, window: int | None) -> None:
    blocks = Blocks([0, 13, 1, 70, 33], 4)
    for most_splits in (1, 3):
        attend = partial(kernel.block_attention, most_splits=most_splits)
        blocks.check(attend, is_causal=is_causal, window=window)
    blocks.check(block_attention, is_causal=is_causal, window=window)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 64, 65, 97])
def test_contexts_end_around_blocks_of_keys_and_splits(length: int) -> None:
    blocks = Blocks([length, max(length - 3, 0)], 2, kv_heads=1)
    for window in (None, 20):
        blocks.check(partial(kernel.block_attention, most_splits=3), is_causal=False, window=window)


@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (8, 64), (3, 80)])
@pytest.mark.parametrize("block_size", [2, 35])
def test_blocks_of_several_tiles(block_size: int, group: int, head_dim: int) -> None:
    """A tile has 32 rows times heads; of a window, every tile begins at its own first key."""
    blocks = Blocks([0, 40], block_size, group=group, kv_heads=1, head_dim=head_dim)
    blocks.check(partial(kernel.block_attention, most_splits=1), is_causal=False, window=None)
    blocks.check(partial(kernel.block_attention, most_splits=2), is_causal=True, window=7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_numbers(dtype: torch.dtype) -> None:
    blocks = Blocks([0, 70], 8, dtype=dtype)
    for most_splits in (1, 3):
        blocks.check(partial(kernel.block_attention, most_splits=most_splits), is_causal=False, window=None)


def test_long_tables_are_split_and_many_programs_are_not() -> None:
    assert kernel._splits(511, 8) == kernel._splits(512, 8) == 1
    assert kernel._splits(513, 8) == 2
    assert kernel._splits(2**17, 8) == 64
    assert kernel._splits(2**17, 512) == kernel._splits(2**17, 5000) == 1
    Blocks([600], 2, kv_heads=1).check(kernel.block_attention, is_causal=False, window=None)


@pytest.mark.parametrize(
    ("heads", "head_dim", "message"),
    [((8, 2), 257, "^head_dim: 257, .* up to 256"), ((66, 2), 64, "^num_attention_heads: 33 a KV head, .* up to 32")],
)
def test_heads_that_no_tile_takes(heads: tuple[int, int], head_dim: int, message: str) -> None:
    check_heads(64, 2, 256)
    with pytest.raises(ValueError, match=message):
        check_heads(*heads, head_dim)
