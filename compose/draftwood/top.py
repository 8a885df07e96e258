"""`draftwood top`: what a verifier is doing right now, live in the terminal or as JSON for scripts."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from draftwood.load import LoadFigures, LoadHistory, LoadSource, Look, figures_of
from draftwood.supervision import interrupt_on_sigterm, say
from draftwood.terminal import Event, Screen, full_screen, paint, wants_colour
from draftwood.top_view import Line, load_lines, title_line, trouble_lines
from draftwood.up import DEFAULT_VERIFIER
from draftwood_wire.errors import Unavailable
from draftwood_wire.tls import ChannelTls

_ANSWER_TIMEOUT_S = 2.0
_SHORTEST_INTERVAL_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verifier", default=DEFAULT_VERIFIER, help="gRPC address of the verifier")
    parser.add_argument("--ca", default="", help="PEM file of the verifier's authority; plaintext when absent")
    parser.add_argument("--certificate", default="", help="PEM file of a client certificate, where one is demanded")
    parser.add_argument("--key", default="", help="PEM file of its key")
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="S", help="seconds between two looks")
    parser.add_argument("--once", action="store_true", help="print one look (rates over one interval) and end")
    parser.add_argument("--json", action="store_true", help="print every look as one line of JSON")


def run(arguments: argparse.Namespace) -> int:
    interrupt_on_sigterm()
    try:
        tls = ChannelTls(ca=arguments.ca, certificate=arguments.certificate, key=arguments.key)
        with LoadSource(arguments.verifier, tls) as source:
            watcher = Watcher(source, arguments.interval)
            if arguments.once:
                return _once(watcher, as_json=arguments.json)
            if arguments.json:
                return _stream(watcher, _print_json)
            if sys.stdin.isatty() and sys.stdout.isatty():
                with full_screen() as screen:
                    return _live(watcher, screen)
            return _stream(watcher, _print_lines)
    except ValueError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # `draftwood top | head`
        sys.stderr.close()
        return 0


class Watcher:
    """Looks at a verifier again and again, and remembers."""

    def __init__(self, source: LoadSource, interval_s: float) -> None:
        self.address = source.address
        self.interval_s = interval_s
        self.history = LoadHistory()
        self.figures: LoadFigures | None = None  # of the last look; None: `trouble` says why there are none
        self.trouble = ""
        self._source = source
        self._before: Look | None = None

    def look(self) -> None:
        try:
            model, load = self._source.ask(_ANSWER_TIMEOUT_S)
        except Unavailable as error:
            self.figures, self.trouble, self._before = None, str(error), None
        else:
            look = Look(load=load, at=time.monotonic())
            self.figures, self.trouble = figures_of(self.address, model, look, self._before), ""
            self._before = look
        self.history.looks.append(self.figures)

    def lines(self, width: int) -> list[Line]:
        model = self.figures.model if self.figures else ""
        title = title_line(self.address, model, time.strftime("%H:%M:%S"), self.interval_s)
        if self.figures is None:
            return [title, [], *trouble_lines(self.address, self.trouble, self.interval_s)]
        return [title, [], *load_lines(self.figures, self.history, width)]


def _once(watcher: Watcher, *, as_json: bool) -> int:
    watcher.look()
    if watcher.figures is not None:
        time.sleep(watcher.interval_s)
        watcher.look()
    if watcher.figures is None:
        say(f"the verifier at {watcher.address} does not answer: {watcher.trouble}")
        return 1
    (_print_json if as_json else _print_lines)(watcher)
    return 0


def _stream(watcher: Watcher, show: Callable[[Watcher], None]) -> int:
    while True:
        watcher.look()
        show(watcher)
        time.sleep(watcher.interval_s)


def _live(watcher: Watcher, screen: Screen) -> int:
    while True:
        watcher.look()
        next_look = time.monotonic() + watcher.interval_s
        while (left_s := next_look - time.monotonic()) > 0:
            screen.draw(watcher.lines(screen.width))
            if screen.wait(left_s) is Event.QUIT:
                return 0


def _print_json(watcher: Watcher) -> None:
    figures = watcher.figures
    body = {"verifier": watcher.address, "error": watcher.trouble} if figures is None else asdict(figures)
    print(json.dumps({"time": round(time.time(), 3), **body}), flush=True)


def _print_lines(watcher: Watcher) -> None:
    width = shutil.get_terminal_size().columns
    colour = wants_colour(sys.stdout)
    for line in watcher.lines(width):
        print(paint(line, width=width, colour=colour))
    print(flush=True)


def _interval(text: str) -> float:
    value = float(text)
    if not value >= _SHORTEST_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text} is below {_SHORTEST_INTERVAL_S}")
    return value
