"""The shipped profile of this CPU, fitted to one run, foretells another one."""

import json
from pathlib import Path

import pytest

from draftwood.simulation.calibration import Observation, observations
from draftwood.simulation.loop import simulate
from draftwood.simulation.policy import simulated_mode
from draftwood.simulation.profile import load_profile

RESULTS = Path(__file__).parents[3] / "docs" / "results"
SEEN = observations(json.loads((RESULTS / "load-cpu.json").read_text()))


def test_the_run_has_every_load_and_every_fixed_mode() -> None:
    assert {(seen.clients, seen.mode) for seen in SEEN} == {
        (clients, mode) for clients in (1, 2, 4, 8, 16, 32, 64) for mode in ("plain", "chain", "tree-4", "tree-10")
    }


@pytest.mark.parametrize("seen", SEEN, ids=lambda seen: f"{seen.mode} x {seen.clients}")
def test_predictions_are_within_a_fifth_of_what_was_measured(seen: Observation) -> None:
    profile = load_profile("cpu")
    predicted = simulate(profile, simulated_mode(seen.mode, profile), seen.clients)
    assert predicted.tokens_per_s == pytest.approx(seen.tokens_per_s, rel=0.2)
