"""Which positions of a session have context in the draft's cache: two ranges may fill up in any order."""


class Coverage:
    """Disjoint, ascending half-open ranges of positions; touching ranges are merged."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of [start, stop) not held yet, ascending. Changes nothing."""
        gaps = []
        for held_start, held_stop in self._ranges:
            if start >= stop or held_start >= stop:
                break
            if held_start > start:
                gaps.append((start, held_start))
            start = max(start, held_stop)
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def add(self, start: int, stop: int) -> None:
        """Hold [start, stop) too."""
        if start >= stop:
            return
        apart = [r for r in self._ranges if r[1] < start or r[0] > stop]
        touching = [r for r in self._ranges if not (r[1] < start or r[0] > stop)]
        whole = (min([start, *(r[0] for r in touching)]), max([stop, *(r[1] for r in touching)]))
        self._ranges = sorted([*apart, whole])

    def is_exactly(self, stop: int) -> bool:
        """True when positions 0 .. stop - 1 and no others are held."""
        return self._ranges == ([(0, stop)] if stop else [])
