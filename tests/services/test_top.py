"""`draftwood top` as people and scripts run it: in a pseudo terminal and piped, against a real verifier."""

import asyncio
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pytest

from draftwood_wire.tree import TokenTree
from tests.services.certificates import Authority
from tests.services.scripted_drafter import DraftedSession, Script, make_tree
from tests.services.verifier_harness import Harness, run, serving

PROMPT = [3, 0, 5, 0, 7, 1]
LIMIT_S = 30.0
# The child takes the pseudo terminal as its own, so that keys become signals as in a shell.
IN_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("draftwood", run_name="__main__")
"""
ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Terminal:
    """`draftwood top` in a pseudo terminal of its own."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], columns: int) -> None:
        self._master, slave = pty.openpty()
        self._before = termios.tcgetattr(slave)
        termios.tcsetwinsize(slave, (24, columns))
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, "top", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        self._slave = slave
        self.output = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def frame(self, *words: str) -> str:
        """Wait for a whole frame with all of `words`; without its escapes."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for frame in reversed(re.findall(r"\x1b\[H(.*?)\x1b\[J", self.output, re.DOTALL)):
                text = ESCAPES.sub("", frame)
                if all(word in text for word in words):
                    self.output = ""
                    return text
            assert self.read(deadline), f"no frame with {words} in {self.output[-2000:]!r}"

    def resize(self, columns: int) -> None:
        termios.tcsetwinsize(self._slave, (24, columns))

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def end(self) -> int:
        """The exit code; what was printed until then is in `output`, and the terminal must be as it was."""
        code = self.process.wait(LIMIT_S)
        while self.read(time.monotonic()):
            pass
        assert termios.tcgetattr(self._slave) == self._before
        return code

    def read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if ready:
            self.output += os.read(self._master, 65536).decode()
        return bool(ready)


@contextmanager
def top(*arguments: str, columns: int = 110, **environment: str) -> Iterator[Terminal]:
    with Terminal(["--interval", "0.1", *arguments], environment, columns) as terminal:
        yield terminal


def piped(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "draftwood", "top", "--interval", "0.2", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env={**os.environ, **environment}
    )


def good_drafter(harness: Harness) -> Script:
    async def script(session: DraftedSession) -> TokenTree:
        return make_tree(harness.target.plain(session.tokens, 3))

    return script


def test_once_prints_figures_for_people_and_for_scripts() -> None:
    async def body() -> None:
        async with serving() as harness, harness.drafter(good_drafter(harness), drafter_id="oak"):
            reply = await harness.generate(PROMPT, 20)
            shown = await asyncio.to_thread(piped, "--once", "--verifier", harness.address)
            assert (shown.returncode, shown.stderr) == (0, "")
            assert "\x1b" not in shown.stdout, "colours in a pipe"
            for word in ("running", "tokens/s", "tokens/round", "KV pages", "oak", "on time", "fake"):
                assert word in shown.stdout
            scripted = await asyncio.to_thread(piped, "--once", "--json", "--verifier", harness.address)
            (line,) = scripted.stdout.splitlines()
            told = json.loads(line)
            assert (told["verifier"], told["model"]) == (harness.address, "fake")
            assert told["drafters"] == [{"drafter_id": "oak", "sessions": 0, "node_limit": 256, "late": False}]
            for name in ("rounds", "speculative_rounds", "proposed_nodes", "accepted_nodes"):
                assert told[name] == getattr(reply.usage, name) > 0
            assert told["committed_tokens"] == 20
            assert told["tokens_per_s"] == 0.0

    run(body())


def test_a_verifier_behind_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, operator = authority.issue("verifier"), authority.issue("operator")

    async def body() -> None:
        tls = {"tls_certificate": server.certificate, "tls_key": server.key, "tls_client_ca": authority.ca}
        async with serving(**tls) as harness:
            arguments = ["--once", "--json", "--verifier", harness.address, "--ca", authority.ca]
            shown = ["--certificate", operator.certificate, "--key", operator.key]
            told = await asyncio.to_thread(piped, *arguments, *shown)
            assert json.loads(told.stdout)["model"] == "fake", told.stderr
            assert (await asyncio.to_thread(piped, *arguments)).returncode == 1
            without_key = await asyncio.to_thread(piped, *arguments, *shown[:2])
            assert without_key.returncode == 2
            assert "Traceback" not in without_key.stderr

    run(body())


def test_an_unreachable_verifier_is_named() -> None:
    shown = piped("--once", "--verifier", "127.0.0.1:1")
    assert shown.returncode == 1
    assert "the verifier at 127.0.0.1:1 does not answer" in shown.stderr
    assert "Traceback" not in shown.stderr
    refused = piped("--interval", "0")
    assert refused.returncode == 2
    assert "--interval" in refused.stderr


def test_live_shows_a_running_request_and_ends_on_ctrl_c() -> None:
    async def body() -> None:
        async with serving() as harness:
            gate = asyncio.Event()

            async def held(session: DraftedSession) -> TokenTree:
                if len(session.commits) > 2:
                    await gate.wait()
                return make_tree(harness.target.plain(session.tokens, 3))

            with top("--verifier", harness.address) as terminal:
                await asyncio.to_thread(terminal.frame, "0 running", "none connected")
                async with harness.drafter(held, drafter_id="oak"):
                    reply = asyncio.create_task(harness.generate(PROMPT, 40))
                    frame = await asyncio.to_thread(terminal.frame, "1 running", "1 drafted", "oak")
                    assert re.search(r"KV pages +\d+%", frame)
                    gate.set()
                    await reply
                    await asyncio.to_thread(terminal.frame, "0 running", "oak")
                terminal.press(b"\x03")
                assert await asyncio.to_thread(terminal.end) == 0
                assert terminal.output.endswith("\x1b[?25h\x1b[?1049l")
                assert "Traceback" not in terminal.output

    run(body())


def test_resizes_and_the_key_that_ends_it() -> None:
    async def body() -> None:
        async with serving() as harness:
            with top("--verifier", harness.address, "--interval", "3600", columns=110) as terminal:
                wide = await asyncio.to_thread(terminal.frame, "none connected: all requests decode plainly")
                assert all(len(line) <= 110 for line in wide.splitlines())
                terminal.resize(40)
                while True:
                    narrow = await asyncio.to_thread(terminal.frame, "none connected")
                    if max(map(len, narrow.splitlines())) == 40:
                        break
                    assert terminal.process.poll() is None
                terminal.press(b"q")
                assert await asyncio.to_thread(terminal.end) == 0

    run(body())


@pytest.mark.parametrize(("unwanted", "coloured"), [("", True), ("1", False)])
def test_colours_are_there_unless_unwanted(unwanted: str, coloured: bool) -> None:
    with top("--verifier", "127.0.0.1:1", NO_COLOR=unwanted) as terminal:
        while "\x1b[J" not in terminal.output:
            assert terminal.read(time.monotonic() + LIMIT_S)
        assert ("\x1b[1;31m" in terminal.output) is coloured
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0


def test_it_goes_on_trying_until_a_verifier_is_there() -> None:
    async def body() -> None:
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))  # not listening: connections are refused
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            with top("--verifier", address) as terminal:
                await asyncio.to_thread(terminal.frame, address, "does not answer", "trying again every 0.1 s")
                reserved.close()
                async with serving(listen=address):
                    await asyncio.to_thread(terminal.frame, "0 running", "fake")
                await asyncio.to_thread(terminal.frame, "does not answer")
                assert terminal.process.poll() is None

    run(body())
