"""Page ids with reference counts. Every page is free, held by a session, or idle: unheld but still indexed."""

from collections.abc import Callable, Iterable

import numpy as np

_FREE, _HELD = 0, np.iinfo(np.int64).max


class PageAllocator:
    """Holds no tensor. `on_evict` is told when an idle page loses its content to a new holder."""

    def __init__(self, pages: int) -> None:
        self.total = pages
        self.available = pages  # that `allocate` could hand out
        self.on_evict: Callable[[int], None] = _ignore
        self._holders = [0] * pages
        self._indexed: set[int] = set()
        self._since = np.full(pages, _FREE, np.int64)  # when it was let go last, if it is idle
        self._clock = 0  # idle pages so far

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` pages, side by side if that costs no content that may soon be wanted again.

        The caller has looked at `available`.
        """
        assert count <= self.available, f"{count} pages asked for, {self.available} available"
        run = self._run(count)
        pages = self._oldest(count) if run is None else list(range(run, run + count))
        for page in pages:
            if self.is_idle(page):
                self._indexed.discard(page)
                self.on_evict(page)
            self._holders[page] = 1
        self._since[pages] = _HELD
        self.available -= count
        return pages

    def share(self, page: int) -> None:
        """One more holder of a page that is held or idle."""
        if self._holders[page] == 0:
            self._since[page] = _HELD
            self.available -= 1
        self._holders[page] += 1

    def is_idle(self, page: int) -> bool:
        return bool(_FREE < self._since[page] < _HELD)

    def index(self, page: int) -> None:
        """Keep the page's content when its last holder lets go."""
        assert self._holders[page] > 0, f"page {page} is indexed but not held"
        self._indexed.add(page)

    def release(self, pages: Iterable[int]) -> None:
        """Let go of one hold on each page; later pages of a prefix are evicted first."""
        for page in reversed(list(pages)):
            assert self._holders[page] > 0, f"page {page} is released but not held"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self.available += 1
                self._clock += page in self._indexed
                self._since[page] = self._clock if page in self._indexed else _FREE

    def check_ledger(self, holds: Iterable[Iterable[int]]) -> None:
        """Assert free + held + idle = total, and that the holds are exactly those of the given sessions."""
        expected = [0] * self.total
        for pages in holds:
            for page in pages:
                expected[page] += 1
        assert expected == self._holders, "holders differ from the sessions' pages"
        held = {page for page, holders in enumerate(self._holders) if holders}
        assert held == set(np.flatnonzero(self._since == _HELD).tolist()), "a page is in two places"
        assert self.available == self.total - len(held), "a page is lost"
        idle = {page for page in range(self.total) if self.is_idle(page)}
        assert idle == self._indexed - held, "an idle page is not indexed"

    def _run(self, count: int) -> int | None:
        """The first of `count` neighbours, those whose newest content is the oldest; none where that is too new."""
        if not 0 < count <= self.total:
            return None
        newest, width = self._since, 1
        while width < count:
            step = min(width, count - width)
            newest, width = np.maximum(newest[:-step], newest[step:]), width + step
        first = int(newest.argmin())
        # Content is too new while less has been let go since than would fill half of what is available.
        is_old = newest[first] == _FREE or newest[first] <= self._clock - self.available // 2
        return first if is_old else None

    def _oldest(self, count: int) -> list[int]:
        pages: list[int] = np.sort(np.argsort(self._since, kind="stable")[:count]).tolist()
        return pages


def _ignore(page: int) -> None:
    del page
