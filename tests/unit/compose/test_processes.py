"""Starting a service: its first line decides, and nothing is left behind when that is the wrong one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.processes import ServiceFailed, start_service
from tests.services.processes import children_of

LISTENING = json.dumps({"event": "listening", "address": "127.0.0.1:1"})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module beside which a test writes its source."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return "pretended_service"


def write(source: str) -> None:
    Path("pretended_service.py").write_text(source)


def test_a_service_is_known_by_its_listening_line(module: str) -> None:
    write(f"import sys; print('''{LISTENING}''', flush=True); sys.stdin.read(); import signal; signal.pause()")
    service = start_service("pretender", module, [])
    try:
        assert service.addresses == {"address": "127.0.0.1:1"}
        assert service.exit_code() is None
        assert service.pid in children_of(os.getpid())
    finally:
        assert service.stop() != 0
    assert service.pid not in children_of(os.getpid())


def test_arguments_reach_the_service(module: str) -> None:
    write("import json, sys; print(json.dumps({'event': 'listening', 'address': ' '.join(sys.argv[1:])}), flush=True)")
    service = start_service("pretender", module, ["--target", "x y"])
    assert service.addresses == {"address": "--target x y"}
    service.stop()


def test_a_stubborn_service_is_killed(module: str) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    write(f"{ignore}; print('''{LISTENING}''', flush=True)\nwhile True: signal.pause()")
    assert start_service("pretender", module, []).stop(timeout_s=0.2) == -9


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit(3)", "the pretender stopped with exit code 3"),
        ("print('hello')", "'hello.n' where its listening line was expected"),
        ("print('[]')", "where its listening line was expected"),
        ('print(\'{"event": "other"}\')', "where its listening line was expected"),
    ],
)
def test_anything_else_is_a_failed_start(module: str, source: str, message: str) -> None:
    write(source)
    before = children_of(os.getpid())
    with pytest.raises(ServiceFailed, match=message):
        start_service("pretender", module, [])
    assert children_of(os.getpid()) == before


def test_a_silent_service_is_given_up(module: str) -> None:
    write("import signal; signal.pause()")
    before = children_of(os.getpid())
    with pytest.raises(ServiceFailed, match="said nothing"):
        start_service("pretender", module, [], timeout_s=0.5)
    assert children_of(os.getpid()) == before


def test_no_service_for_a_launcher_that_is_gone() -> None:
    command = [sys.executable, "-m", "draftwood.supervised", "1", "this"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "the launcher is gone" in result.stderr
    assert result.stdout == ""
