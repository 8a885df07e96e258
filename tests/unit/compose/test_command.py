"""The command line itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.__main__ import main
from draftwood.demo import read_prompts


@pytest.mark.parametrize("command", ["up", "generate", "top", "demo", "train", "bench", "simulate", "doctor"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("draftwood 0.")


def test_a_draft_without_its_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--draft", "somewhere"]) == 1
    assert "--target" in capsys.readouterr().err


def test_the_command_starts_without_torch() -> None:
    code = "import sys, draftwood.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_prompts_are_objects_or_strings(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n"b"\n{"prompt": "c"}\n')
    assert read_prompts(file, 2) == ["a", "b"]
