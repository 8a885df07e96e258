"""Page ids with reference counts. Every page is free, held by a session, or idle: unheld but still indexed."""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class PageAllocator:
    """Holds no tensor. `on_evict` is told when an idle page loses its content to a new holder."""

    def __init__(self, pages: int) -> None:
        self.total = pages
        self.on_evict: Callable[[int], None] = _ignore
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._indexed: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def available(self) -> int:
        """Pages that `allocate` could hand out."""
        return len(self._free) + len(self._idle)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` pages; the caller has looked at `available`."""
        assert count <= self.available, f"{count} pages asked for, {self.available} available"
        pages = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, page: int) -> None:
        """One more holder of a page that is held or idle."""
        self._idle.pop(page, None)
        self._holders[page] += 1

    def is_idle(self, page: int) -> bool:
        return page in self._idle

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
                if page in self._indexed:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def check_ledger(self, holds: Iterable[Iterable[int]]) -> None:
        """Assert free + held + idle = total, and that the holds are exactly those of the given sessions."""
        expected = [0] * self.total
        for pages in holds:
            for page in pages:
                expected[page] += 1
        assert expected == self._holders, "holders differ from the sessions' pages"
        held = {page for page, holders in enumerate(self._holders) if holders}
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        assert len(free | held | idle) == len(free) + len(held) + len(idle), "a page is in two places"
        assert len(free) + len(held) + len(idle) == self.total, "a page is lost"
        assert idle == self._indexed - held, "an idle page is not indexed"

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self._indexed.discard(page)
        self.on_evict(page)
        return page


def _ignore(page: int) -> None:
    del page
