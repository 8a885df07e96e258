"""A screen that is drawn again and again: styles, keys, resizes, and everything put back at the end."""

import enum
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from draftwood.top_view import Line

_STYLES = {"bold": "1", "dim": "2", "good": "32", "warn": "33", "bad": "1;31"}
_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_LINE = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"


class Event(enum.Enum):
    TIMEOUT = "timeout"
    RESIZED = "resized"
    QUIT = "quit"


def wants_colour(output: TextIO) -> bool:
    """https://no-color.org: any value but an empty one turns colours off."""
    return output.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(line: Line, *, width: int, colour: bool) -> str:
    """The line in at most `width` columns."""
    parts = []
    for span in line:
        text = span.text[:width]
        width -= len(text)
        code = _STYLES.get(span.style)
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if colour and code and text else text)
    return "".join(parts)


class Screen:
    """A terminal in full-screen mode; made by `full_screen`."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._colour = wants_colour(sys.stdout)

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def draw(self, lines: Sequence[Line]) -> None:
        size = shutil.get_terminal_size()
        shown = [paint(line, width=size.columns, colour=self._colour) + _CLEAR_LINE for line in lines[: size.lines]]
        sys.stdout.write(_HOME + "\n".join(shown) + _CLEAR_BELOW)
        sys.stdout.flush()

    def wait(self, timeout_s: float) -> Event:
        """Until time is up, the window changes size, or `q` is typed."""
        ready, _, _ = select.select([sys.stdin, self._wakeup], [], [], max(timeout_s, 0))
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
            return Event.RESIZED
        if ready:
            typed = os.read(sys.stdin.fileno(), 64)
            return Event.QUIT if b"q" in typed.lower() or not typed else Event.TIMEOUT
        return Event.TIMEOUT


@contextmanager
def full_screen() -> Iterator[Screen]:
    """Needs a terminal on stdin and stdout. Ctrl-C is KeyboardInterrupt as ever; the terminal is as before after it."""
    before = termios.tcgetattr(sys.stdin)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # A signal's number is written to the pipe, which ends a wait; without a handler SIGWINCH would write nothing.
    old_handler = signal.signal(signal.SIGWINCH, lambda *_: None)
    old_wakeup = signal.set_wakeup_fd(writer)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        yield Screen(reader)
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(old_wakeup)
        signal.signal(signal.SIGWINCH, old_handler)
        os.close(reader)
        os.close(writer)
