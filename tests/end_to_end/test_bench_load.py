"""`draftwood bench load` on services of its own: small, so it says that everything works and not how fast it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODES = ["plain", "chain", "tree", "auto"]
TIMEOUT_S = 280


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "draftwood", "bench", "load", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_all_modes_give_equal_tokens_and_a_row_for_each_load(tmp_path: Path) -> None:
    report, picture = tmp_path / "load.json", tmp_path / "load.png"
    result = bench(
        *("--concurrency", "1,2", "--tree-nodes", "4,8", "--pairs", "1", "--window-s", "0.5"),
        *("--output-tokens", "4,12", "--json", str(report), "--plot", str(picture)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical in all modes" in result.stdout
    written = json.loads(report.read_text())
    assert set(written) == {"rows", "environment"}
    assert [row["concurrency"] for row in written["rows"]] == [1, 2]
    for row in written["rows"]:
        assert sorted(row["tokens_per_s"]) == sorted(MODES)
        assert min(row["tokens_per_s"].values()) > 0
        assert set(row["modes"]) == {"plain", "chain", "tree-4", "tree-8", "auto"}
        assert row["modes"]["plain"]["plain_steps"] == 1.0
        assert {len(figures["pairs_tokens_per_s"]) for figures in row["modes"].values()} == {4}
        # The prompts are the same in every mode, and no mode finds them in the cache.
        assert all(figures["cached_tokens"] == 0 for figures in row["modes"].values())
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("drafter", ["random", "slow:50"])
def test_a_bad_drafter_changes_no_token(drafter: str) -> None:
    result = bench(
        *("--concurrency", "2", "--tree-nodes", "4", "--modes", "plain,tree", "--drafter", drafter),
        *("--pairs", "1", "--window-s", "0.5", "--output-tokens", "4,12"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical in all modes" in result.stdout


def test_open_loop(tmp_path: Path) -> None:
    report = tmp_path / "rate.json"
    result = bench(
        *("--rate", "4", "--modes", "plain,auto", "--pairs", "1", "--window-s", "1.5", "--output-tokens", "4,12"),
        *("--json", str(report)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (row,) = json.loads(report.read_text())["rows"]
    assert row["rate"] == 4
    assert row["modes"]["plain"]["ttft_p50_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "bush"], "bush"),
        (["--gateway", "127.0.0.1:1", "--drafter", "random"], "--drafter"),
        (["--output-tokens", "9"], "--output-tokens"),
    ],
)
def test_a_command_line_that_makes_no_sense(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
