"""One service as a child process: start it, learn its addresses, stop it."""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from draftwood.tuning import SERVICE_ENVIRONMENT

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0


class ServiceFailed(RuntimeError):
    """A service did not start; the text says which and what it printed."""


@dataclass(frozen=True, kw_only=True)
class ServiceProcess:
    """A running service; `addresses` is its listening line: `address`, or `grpc` and `http` for the gateway."""

    name: str
    process: subprocess.Popen[str]
    addresses: dict[str, str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, then SIGKILL after `timeout_s`; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return _reap(self.process, timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would look to the others."""
        self.process.kill()
        _reap(self.process, STOP_TIMEOUT_S)


def start_service(
    name: str, module: str, arguments: Sequence[str], *, log: IO[str] | None = None, timeout_s: float = START_TIMEOUT_S
) -> ServiceProcess:
    """Start `module` and wait for its listening line. `log` takes its stderr; absent, ours does.

    Call it from a thread that lives as long as the service: Linux ends the child with the thread that started it.
    """
    command = [sys.executable, "-m", "draftwood.supervised", str(os.getpid()), module, *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**SERVICE_ENVIRONMENT, **os.environ},
        # Ctrl-C reaches the launcher only, which then stops the services in order.
        process_group=0,
    )
    try:
        addresses = _listening_line(name, process, timeout_s)
    except BaseException:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        raise
    _drain(process)
    return ServiceProcess(name=name, process=process, addresses=addresses)


def _listening_line(name: str, process: subprocess.Popen[str], timeout_s: float) -> dict[str, str]:
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        ready = selector.select(deadline - time.monotonic())
    if not ready:
        raise ServiceFailed(f"the {name} said nothing for {timeout_s:g} s")
    line = process.stdout.readline()
    if not line:
        raise ServiceFailed(f"the {name} stopped with exit code {process.wait()} before it listened")
    try:
        message = json.loads(line)
        if message.pop("event") != "listening":
            raise ValueError(line)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ServiceFailed(f"the {name} printed {line!r} where its listening line was expected") from error
    return {str(key): str(value) for key, value in message.items()}


def _drain(process: subprocess.Popen[str]) -> None:
    """Keep a chatty service from blocking on a full pipe."""
    stdout = process.stdout
    assert stdout is not None

    def forward() -> None:
        with stdout:
            for line in stdout:
                sys.stderr.write(line)

    threading.Thread(target=forward, daemon=True, name=f"stdout of {process.pid}").start()


def _reap(process: subprocess.Popen[str], timeout_s: float) -> int:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
