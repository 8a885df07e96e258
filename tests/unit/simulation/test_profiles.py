"""Profiles: the shipped ones hold what they claim, and calibration finds what a run came from."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood.__main__ import main
from draftwood.simulation.acceptance import RoundKind
from draftwood.simulation.calibration import calibrate, non_negative_least_squares
from draftwood.simulation.cost import DraftCost, StepCost
from draftwood.simulation.loop import simulate
from draftwood.simulation.policy import simulated_mode
from draftwood.simulation.profile import Profile, load_profile, parse_profile, save_profile, shipped_profiles

KIMI = "pcie-8x-rtx-pro-6000-kimi-k2.6"
RESULTS = Path(__file__).parents[3] / "docs" / "results"
MODES = ("plain", "chain", "tree-4", "tree-16")
CLIENTS = (1, 2, 4, 8, 16, 32, 64)

MACHINE = Profile(
    name="pretended",
    provenance={},
    step=StepCost(rows=(1.0, 1001.0), context=(0.0,), seconds=((0.004,), (0.104,)), session_seconds=(0.0008,)),
    draft=DraftCost(sessions=(1.0, 64.0), seconds=(0.004, 0.02)),
    round_trip_s=0.0,
    acceptance=(
        RoundKind(share=0.4, ranks=((0.95, 0.02),) * 7),
        RoundKind(share=0.6, ranks=((0.5, 0.2, 0.1),) * 7),
    ),
    prompt_tokens=(14, 140),
    output_tokens=(32, 192),
    node_limit=16,
    prefill_chunk=256,
    max_batch=64,
)


def speed(profile: Profile, mode: str, clients: int) -> float:
    return simulate(profile, simulated_mode(mode, profile), clients).tokens_per_s


def report_of(profile: Profile) -> dict[str, Any]:
    """What a bench run on a machine like the profile would write."""
    rows = []
    for clients in CLIENTS:
        modes = {}
        for name in MODES:
            mode = simulated_mode(name, profile)
            outcome = simulate(profile, mode, clients)
            modes[name] = {
                "tokens_per_s": outcome.tokens_per_s,
                "accepted_length": outcome.accepted_length,
                "rounds": 1000,
                "nodes_a_round": len(mode.trees[0].scores) if mode.trees else 0.0,
                "mean_prompt_tokens": 55.0,
            }
        rows.append({"concurrency": clients, "modes": modes})
    return {"rows": rows, "environment": {"machine": "pretended", "output_tokens": list(profile.output_tokens)}}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return report_of(MACHINE)


def test_calibration_finds_the_machine_that_a_report_came_from(report: dict[str, Any]) -> None:
    found = calibrate(report, "found")
    for row in report["rows"]:
        for mode, figures in row["modes"].items():
            assert speed(found, mode, row["concurrency"]) == pytest.approx(figures["tokens_per_s"], rel=0.15)
    # A size that the report does not have.
    for clients in (1, 8, 64):
        assert speed(found, "tree-10", clients) == pytest.approx(speed(MACHINE, "tree-10", clients), rel=0.15)


def test_command_holds_a_profile_against_a_report(
    report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, profile, slower = tmp_path / "run.json", tmp_path / "found.json", tmp_path / "slower.json"
    run.write_text(json.dumps(report))
    assert main(["simulate", "calibrate", str(run), "--name", "found", "--output", str(profile)]) == 0
    assert main(["simulate", "--profile", str(profile), "--against", str(run)]) == 0
    assert "20% allowed" in capsys.readouterr().out
    found = load_profile(str(profile))
    step = replace(found.step, seconds=tuple((2 * s,) for (s,) in found.step.seconds))
    save_profile(replace(found, step=step), slower)
    assert main(["simulate", "--profile", str(slower), "--against", str(run)]) == 1


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_say_where_their_numbers_come_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert {"step", "draft", "acceptance"} <= profile.provenance.keys()


def test_the_log_of_the_founding_engine_is_reproduced() -> None:
    profile = load_profile(KIMI)
    assert [(k.clients, k.mode, k.tokens_per_s) for k in profile.known] == [
        (1, "plain", 65), (1, "chain", 86), (64, "plain", 1493), (64, "chain", 1146)
    ]  # fmt: skip
    for known in profile.known:
        outcome = simulate(profile, simulated_mode(known.mode, profile), known.clients)
        assert outcome.tokens_per_s == pytest.approx(known.tokens_per_s, rel=0.1)
        if known.mode == "chain":
            assert 3.5 <= outcome.accepted_length <= 4.1


@pytest.mark.parametrize("clients", CLIENTS)
def test_auto_would_not_have_lost_there(clients: int) -> None:
    profile = load_profile(KIMI)
    plain, auto = speed(profile, "plain", clients), speed(profile, "auto", clients)
    assert auto >= 0.99 * plain


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    save_profile(MACHINE, tmp_path / "p.json")
    assert load_profile(str(tmp_path / "p.json")) == MACHINE


def test_errors_name_the_field() -> None:
    good = asdict(MACHINE)
    for field, value, message in (
        ("step", {**good["step"], "rows": [2, 1]}, "step.rows"),
        ("draft", {**good["draft"], "seconds": [1]}, "draft.seconds"),
        ("acceptance", [{"share": 1, "ranks": [[0.9, 0.3]]}], r"acceptance.ranks\[0\]"),
        ("prompt_tokens", [5, 4], "prompt_tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_profile({**good, field: value})


def test_an_unknown_profile_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--profile", "abacus"]) == 2
    assert KIMI in capsys.readouterr().err


def test_least_squares_without_negative_weights() -> None:
    a = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert non_negative_least_squares(a, np.array([2.0, 3.0, 5.0])) == pytest.approx([2.0, 3.0])
    assert non_negative_least_squares(a, np.array([2.0, -3.0, -1.0])) == pytest.approx([0.5, 0.0])
