"""Which sessions are drafted for to see what drafting would give."""

from typing import Any

from draftwood_verifier.drafting import _spread


def test_probes_are_from_everywhere_in_the_line() -> None:
    line: list[Any] = list(range(64))
    assert _spread(line) == [4, 12, 20, 28, 36, 44, 52, 60]
    assert _spread(line[:8]) == line[:8]
    assert _spread(line[:1]) == [0]
    assert len(_spread(line[:20])) == 8
