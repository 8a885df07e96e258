"""Watch a running stack: a drafter that dies is started again, the others may not die."""

import signal
import sys
import time

from draftwood.processes import ServiceFailed
from draftwood.stack import Stack
from draftwood_wire.errors import Unavailable

_POLL_S = 0.2
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
# A drafter that lived this long starts over with the shortest backoff.
_STABLE_S = 60.0


class Supervisor:
    """Runs on the thread that started the stack, because services end with the thread that started them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._backoff_s = _FIRST_BACKOFF_S
        self._drafter_since = time.monotonic()

    def run(self) -> int:
        """Return 1 when the verifier or the gateway died; Ctrl-C leaves through KeyboardInterrupt."""
        while True:
            time.sleep(_POLL_S)
            for service in (self._stack.verifier, self._stack.gateway):
                if (code := service.exit_code()) is not None:
                    say(f"the {service.name} died with exit code {code}; stopping everything")
                    return 1
            drafter = self._stack.drafter
            if drafter is not None and (code := drafter.exit_code()) is not None:
                self._restart_drafter(code)

    def _restart_drafter(self, code: int) -> None:
        if time.monotonic() - self._drafter_since > _STABLE_S:
            self._backoff_s = _FIRST_BACKOFF_S
        say(f"the drafter died with exit code {code}; decoding plainly, next start in {self._backoff_s:g} s")
        time.sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
        self._drafter_since = time.monotonic()
        try:
            self._stack.start_drafter()
            say("the drafter is back")
        except (ServiceFailed, Unavailable) as error:
            # The dead process stays in the stack, so that the next turn tries again.
            say(f"the drafter did not come back: {error}")


def interrupt_on_sigterm() -> None:
    """SIGTERM leaves like Ctrl-C does: through KeyboardInterrupt, which stops the services on its way out."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def say(message: str) -> None:
    print(f"draftwood: {message}", file=sys.stderr, flush=True)
