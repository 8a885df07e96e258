import numpy as np
import pytest
import torch

from draftwood_drafter.context_cache import ContextCache, OutOfPages, PageTable


def make_cache(pages: int = 6) -> ContextCache:
    return ContextCache(pages=pages, page_size=4, layers=2, kv_heads=1, head_dim=3)


def test_rows_come_back_where_they_were_put() -> None:
    cache, tables = make_cache(), [PageTable(), PageTable()]
    rows = torch.randn(9, 2, 2, 1, 3)
    cache.reserve(tables[0], 3)
    cache.reserve(tables[1], 2)
    cache.reserve(tables[0], 7)
    cache.write(np.concatenate([tables[0].slots[:7], tables[1].slots[:2]]), rows)
    gathered = cache.gather(tables, [7, 2], headroom=1)
    assert gathered.shape == (2, 8, 2, 2, 1, 3)
    torch.testing.assert_close(gathered[0, 1:], rows[:7], rtol=0, atol=0)
    torch.testing.assert_close(gathered[1, 1:3], rows[7:], rtol=0, atol=0)
    assert not gathered[1, 3:].any()
    assert not gathered[:, 0].any()


def test_running_out_takes_nothing() -> None:
    cache, table, other = make_cache(), PageTable(), PageTable()
    cache.reserve(table, 17)
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 of 6 are free"):
        cache.reserve(other, 8)
    assert (cache.pages_free, other.pages) == (1, [])
    cache.check_ledger()


def test_ledger_after_random_reservations() -> None:
    rng, cache = np.random.default_rng(0), make_cache(pages=40)
    tables = [PageTable() for _ in range(8)]
    for _ in range(500):
        table = tables[rng.integers(len(tables))]
        if rng.random() < 0.3:
            cache.release(table)
        else:
            try:
                cache.reserve(table, int(rng.integers(1, 60)))
            except OutOfPages:
                cache.release(table)
        cache.check_ledger()
        held = [page for each in tables for page in each.pages]
        assert len(set(held)) == len(held)
        assert len(held) + cache.pages_free == 40
    for table in tables:
        cache.release(table)
    assert cache.pages_free == 40
