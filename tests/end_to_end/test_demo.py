"""`draftwood demo` as a newcomer runs it."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    """The last line of one run, in a process of its own with services of its own."""
    command = [sys.executable, "-m", "draftwood", "demo", "--json", "--prompts", "12"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def modes(report: dict[str, object]) -> dict[str, dict[str, float]]:
    found = report["modes"]
    assert isinstance(found, dict)
    return found


def test_outputs_are_identical(report: dict[str, object]) -> None:
    assert report["identical"] is True


def test_shape_of_the_report(modes: dict[str, dict[str, float]]) -> None:
    assert list(modes) == ["plain", "chain", "tree"]
    for summary in modes.values():
        assert set(summary) == {"tokens_per_s", "accepted_length", "rounds", "tokens"}
    assert len({summary["tokens"] for summary in modes.values()}) == 1
    assert modes["plain"]["accepted_length"] == 1.0


def test_a_tree_commits_many_tokens_a_round(modes: dict[str, dict[str, float]]) -> None:
    assert modes["tree"]["accepted_length"] >= 2.5


def test_a_tree_is_faster_than_plain(modes: dict[str, dict[str, float]]) -> None:
    assert modes["tree"]["tokens_per_s"] >= 1.5 * modes["plain"]["tokens_per_s"]
