"""How far a long load is, for whoever watches a terminal."""

import sys
from collections.abc import Iterator
from typing import TextIO

_WIDTH = 30


def shown(count: int, label: str, stream: TextIO | None = None) -> Iterator[int]:
    """0 … count - 1, with a bar on `stream` (stderr) that grows as they are used up; silent unless it is a terminal."""
    stream = sys.stderr if stream is None else stream
    is_watched = stream.isatty()
    for index in range(count):
        if is_watched:
            _draw(stream, label, index, count)
        yield index
    if is_watched:
        _draw(stream, label, count, count)
        stream.write("\n")


def _draw(stream: TextIO, label: str, done: int, count: int) -> None:
    filled = _WIDTH * done // count
    stream.write(f"\r{label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{count}")
    stream.flush()
