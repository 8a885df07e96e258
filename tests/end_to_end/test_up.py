"""`draftwood up` stops everything that it started, however it ends."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftwood.stack import StackOptions
from tests.services.processes import children_of, wait_for, watched

STOP_S = 30.0


@contextmanager
def launched(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A launcher whose services are healthy, and what it printed until then."""
    addresses = [word for flag in ("--grpc", "--http", "--verifier") for word in (flag, "127.0.0.1:0")]
    command = [sys.executable, "-m", "draftwood", "up", *addresses, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        printed = ""
        for line in process.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        assert "Ctrl-C" in printed, f"exit code {process.wait()}: {printed}"
        yield process, printed
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def service_pids(launcher: int) -> dict[str, int]:
    """Process ids of the running services by module name."""
    found: dict[str, int] = {}
    for pid in children_of(launcher):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        # `python -m draftwood.supervised PARENT MODULE`; empty while a child is being made or is gone.
        if "draftwood.supervised" in words:
            found[words[words.index("draftwood.supervised") + 2]] = pid
    return found


def test_ctrl_c_stops_all_services() -> None:
    with launched() as (launcher, printed), watched(children_of(launcher.pid)) as survivors:
        http = next(word for word in printed.split() if word.startswith("http://"))
        with urllib.request.urlopen(f"{http}/models", timeout=30) as reply:
            assert json.load(reply)["object"] == "list"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(STOP_S) == 0
        assert survivors(0.0) == []


def complete(printed: str) -> str:
    """Greedy text from the OpenAI front door that `printed` names."""
    http = next(word for word in printed.split() if word.startswith("http://"))
    body = {"model": "draftwood", "prompt": "def add(a, b):", "max_tokens": 32, "temperature": 0}
    request = urllib.request.Request(
        f"{http}/completions", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["text"])


def test_two_ranks_serve_the_same_text_and_stop_together() -> None:
    with launched() as (launcher, printed):
        expected = complete(printed)
    with launched("--tensor-parallel", "2") as (launcher, printed):
        services = children_of(launcher.pid)
        ranks = [rank for pid in services for rank in children_of(pid)]
        assert len(ranks) == 2
        with watched([*services, *ranks]) as survivors:
            assert complete(printed) == expected
            launcher.send_signal(signal.SIGINT)
            assert launcher.wait(STOP_S) == 0
            assert survivors(0.0) == []


def test_the_head_may_be_the_verifiers() -> None:
    with launched() as (_, printed):
        expected = complete(printed)
    with launched("--head", "verifier", "--verification", "rejection") as (_, printed):
        assert complete(printed) == expected


def test_rejection_wants_the_head_on_the_verifier() -> None:
    with pytest.raises(ValueError, match="--head verifier"):
        StackOptions(target=Path("target"), draft=Path("draft"), verification="rejection")


def test_a_killed_launcher_takes_its_services_along() -> None:
    with launched() as (launcher, _):
        services = children_of(launcher.pid)
        assert len(services) == 3
        with watched(services) as survivors:
            launcher.kill()
            assert survivors(STOP_S) == []


def test_a_dead_drafter_is_started_again() -> None:
    with launched() as (launcher, _), watched(children_of(launcher.pid)):
        before = service_pids(launcher.pid)
        os.kill(before["draftwood_drafter"], signal.SIGKILL)
        wait_for(
            lambda: service_pids(launcher.pid).get("draftwood_drafter", 0) not in (0, before["draftwood_drafter"]),
            "a new drafter process",
        )
        after = service_pids(launcher.pid)
        assert {**after, "draftwood_drafter": 0} == {**before, "draftwood_drafter": 0}
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(STOP_S) == 0


@pytest.mark.parametrize("service", ["verifier", "gateway"])
def test_a_dead_verifier_or_gateway_ends_everything(service: str, capfd: pytest.CaptureFixture[str]) -> None:
    with launched() as (launcher, _), watched(children_of(launcher.pid)) as survivors:
        os.kill(service_pids(launcher.pid)[f"draftwood_{service}"], signal.SIGKILL)
        assert launcher.wait(STOP_S) == 1
        assert survivors(0.0) == []
    assert f"the {service} died with exit code -9" in capfd.readouterr().err
