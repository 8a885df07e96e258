"""Full pages that can be found again by the tokens they and all pages before them hold."""

import hashlib

import numpy as np

from draftwood_verifier.cache.allocator import PageAllocator

ROOT_KEY = b""


class PrefixCache:
    """Maps the chained hash of a page's tokens to the page."""

    def __init__(self, allocator: PageAllocator, page_size: int) -> None:
        self._allocator = allocator
        self._page_size = page_size
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        allocator.on_evict = self._forget

    def match(self, tokens: list[int]) -> tuple[list[int], list[bytes]]:
        """Pages and keys of the longest cached prefix; one token at least is left to compute. Holds nothing yet."""
        pages: list[int] = []
        keys: list[bytes] = []
        key = ROOT_KEY
        for index in range((len(tokens) - 1) // self._page_size):
            key = self._key(key, tokens, index)
            page = self._pages.get(key)
            if page is None:
                break
            pages.append(page)
            keys.append(key)
        return pages, keys

    def publish(self, tokens: list[int], pages: list[int], keys: list[bytes], computed: int) -> None:
        """Index the pages that are full now; extends `keys`, which are those of the session's earlier full pages."""
        for index in range(len(keys), computed // self._page_size):
            key = self._key(keys[-1] if keys else ROOT_KEY, tokens, index)
            keys.append(key)
            if key not in self._pages:
                self._pages[key] = pages[index]
                self._keys[pages[index]] = key
                self._allocator.index(pages[index])

    def _key(self, parent: bytes, tokens: list[int], index: int) -> bytes:
        # A cryptographic hash: a collision would show one client another client's text.
        page_tokens = tokens[index * self._page_size : (index + 1) * self._page_size]
        return hashlib.blake2b(parent + np.array(page_tokens, np.int32).tobytes(), digest_size=16).digest()

    def _forget(self, page: int) -> None:
        del self._pages[self._keys.pop(page)]
