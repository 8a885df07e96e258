"""The page ledger and the prefix cache, against random use."""

import random

import pytest

from draftwood_verifier.cache.allocator import PageAllocator
from draftwood_verifier.cache.prefix import PrefixCache


def test_ledger_under_random_use() -> None:
    rng = random.Random(3)
    allocator = PageAllocator(32)
    cache = PrefixCache(allocator, 4)
    holds: list[list[int]] = []
    for _ in range(3000):
        if holds and rng.random() < 0.5:
            allocator.release(holds.pop(rng.randrange(len(holds))))
        else:
            tokens = [rng.randrange(2) for _ in range(rng.randint(1, 24))]
            needed = -(-len(tokens) // 4)
            cached, keys = cache.match(tokens)
            idle = sum(allocator.is_idle(page) for page in cached)
            if needed - len(cached) <= allocator.available - idle:
                for page in cached:
                    allocator.share(page)
                pages = cached + allocator.allocate(needed - len(cached))
                cache.publish(tokens, pages, keys, len(tokens))
                holds.append(pages)
        allocator.check_ledger(holds)
    for pages in holds:
        allocator.release(pages)
    allocator.check_ledger([])
    assert allocator.available == 32


def test_a_hit_leaves_one_token_to_compute() -> None:
    allocator = PageAllocator(8)
    cache = PrefixCache(allocator, 4)
    tokens = list(range(8))
    pages = allocator.allocate(2)
    cache.publish(tokens, pages, [], 8)
    assert cache.match(tokens)[0] == pages[:1]
    assert cache.match([*tokens, 8])[0] == pages
    assert cache.match([99, *tokens[1:], 8])[0] == []
    assert cache.match([*tokens[:5], 99, *tokens[6:], 8])[0] == pages[:1]


def test_the_end_of_the_oldest_prefix_is_evicted_first() -> None:
    allocator = PageAllocator(4)
    cache = PrefixCache(allocator, 2)
    old, new = list(range(4)), list(range(10, 14))
    for tokens in (old, new):
        pages = allocator.allocate(2)
        cache.publish(tokens, pages, [], 4)
        allocator.release(pages)
    allocator.allocate(1)
    assert [len(cache.match([*tokens, 0])[0]) for tokens in (old, new)] == [1, 2]


def keep(allocator: PageAllocator, pages: list[int]) -> None:
    """Let go of pages whose content may be wanted again."""
    for page in pages:
        allocator.index(page)
    allocator.release(pages)


def test_pages_lie_side_by_side_where_enough_free_ones_do() -> None:
    allocator = PageAllocator(12)
    first, held, last = (allocator.allocate(size) for size in (3, 3, 6))
    assert [*first, *held, *last] == list(range(12))
    allocator.release(first)
    allocator.release(last)
    assert allocator.allocate(4) == [6, 7, 8, 9]
    assert allocator.allocate(4) == [0, 1, 2, 10]


def test_what_was_let_go_long_ago_makes_room_for_neighbours() -> None:
    allocator = PageAllocator(12)
    evicted: list[int] = []
    allocator.on_evict = evicted.append
    pages = allocator.allocate(12)
    for some in (pages[1:2], pages[4:8], pages[:1], pages[2:4], pages[8:]):
        keep(allocator, some)
    assert allocator.allocate(4) == evicted == [4, 5, 6, 7]  # page 1 is older, and alone
    allocator.check_ledger([[4, 5, 6, 7]])


def test_nothing_new_is_evicted_for_the_sake_of_neighbours() -> None:
    allocator = PageAllocator(12)
    pages = allocator.allocate(12)
    old, new = pages[::3], sorted({*pages} - {*pages[::3]})
    keep(allocator, old)
    keep(allocator, new)
    assert allocator.allocate(4) == old
    # Every run holds something new, and so the pages that are left: the end of the newer prefix goes first.
    assert allocator.allocate(2) == [10, 11]


def test_only_full_pages_are_published() -> None:
    allocator = PageAllocator(4)
    cache = PrefixCache(allocator, 4)
    pages, keys = allocator.allocate(2), []
    for computed, published in ((3, 0), (4, 1), (7, 1), (8, 2)):
        cache.publish(list(range(9)), pages, keys, computed)
        assert len(keys) == published


def test_a_lost_page_is_noticed() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    with pytest.raises(AssertionError):
        allocator.check_ledger([pages[:1]])
    allocator.release(pages)
    with pytest.raises(AssertionError, match="not held"):
        allocator.release(pages)
