"""The bar of a load: on a terminal, and nowhere else."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwood_verifier.model.loading import load_model
from draftwood_verifier.model.progress import shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_it_grow() -> None:
    terminal = Terminal()
    assert list(shown(3, "loading", terminal)) == [0, 1, 2]
    drawn = terminal.getvalue().split("\r")[1:]
    assert [line.split()[-1] for line in drawn] == ["0/3", "1/3", "2/3", "3/3"]
    assert [line.count("#") for line in drawn] == [0, 10, 20, 30]
    assert drawn[-1].endswith("\n")


def test_a_file_stays_clean() -> None:
    file = io.StringIO()
    assert list(shown(3, "loading", file)) == [0, 1, 2]
    assert file.getvalue() == ""


def test_loads_show_it_on_stderr(
    target: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = target("llama")
    capsys.readouterr()
    load_model(folder)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    load_model(folder)
    assert terminal.getvalue().endswith("4/4\n")
