"""`draftwood simulate`: tokens a second against concurrency on hardware that is not at hand, from a profile.

`draftwood simulate calibrate REPORT.json --output PROFILE.json` makes a profile from a run of `draftwood bench load`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from draftwood.simulation.calibration import calibrate, observations
from draftwood.simulation.loop import Prediction, simulate
from draftwood.simulation.policy import simulated_mode
from draftwood.simulation.profile import Profile, load_profile, save_profile, shipped_profiles
from draftwood.supervision import say

_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
_MODES = ("plain", "chain", "tree-4", "tree-10", "tree-16", "auto")
_WITHIN = 0.2
_PROFILE = "cpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default=_PROFILE, help=f"{', '.join(shipped_profiles())}, or a file")
    parser.add_argument("--concurrency", type=_whole_numbers, default=_CONCURRENCY, help="clients, such as 1,8,64")
    parser.add_argument("--modes", type=_words, default=_MODES, help=f"some of {','.join(_MODES)}; tree-N for any N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--against", type=Path, metavar="REPORT.json", help="compare with a run of draftwood bench load"
    )
    parser.add_argument("--within", type=float, default=_WITHIN, help="allowed miss, as a share of what was measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the predictions there")
    actions = parser.add_subparsers(metavar="calibrate")
    action = actions.add_parser("calibrate", help="make a profile from a run of draftwood bench load")
    action.add_argument("report", type=Path, help="JSON that draftwood bench load wrote")
    action.add_argument("--name", default="cpu")
    action.add_argument("--output", type=Path, required=True, metavar="PROFILE.json")
    action.set_defaults(simulate=_calibrate)
    parser.set_defaults(simulate=_predict)


def run(arguments: argparse.Namespace) -> int:
    """Return 0; 1 when a prediction misses the run it is held against by more than allowed; 2 for bad input."""
    try:
        return int(arguments.simulate(arguments))
    except (ValueError, OSError) as error:
        say(str(error))
        return 2


def _predict(arguments: argparse.Namespace) -> int:
    profile = load_profile(arguments.profile)
    if arguments.against is not None:
        return _compare(profile, arguments)
    rows = [(clients, _row(profile, clients, arguments)) for clients in arguments.concurrency]
    print(f"{profile.name}: predicted tokens a second")
    print(
        f"{'clients':>8}" + "".join(f"{mode:>10}" for mode in arguments.modes) + "   auto: tokens a round, plain steps"
    )
    for clients, row in rows:
        speeds = "".join(f"{row[mode].tokens_per_s:10.1f}" for mode in arguments.modes)
        print(f"{clients:8}{speeds}{_auto(row.get('auto'))}")
    _print_known(profile, arguments.seed)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_json(profile, rows), indent=1) + "\n")
    return 0


def _row(profile: Profile, clients: int, arguments: argparse.Namespace) -> dict[str, Prediction]:
    return {mode: simulate(profile, simulated_mode(mode, profile), clients, arguments.seed) for mode in arguments.modes}


def _auto(prediction: Prediction | None) -> str:
    return "" if prediction is None else f"   {prediction.accepted_length:.2f}, {prediction.plain_steps:.0%}"


def _print_known(profile: Profile, seed: int) -> None:
    for known in profile.known:
        predicted = simulate(profile, simulated_mode(known.mode, profile), known.clients, seed)
        print(
            f"known: {known.mode} at {known.clients} clients {known.tokens_per_s:g} tokens/s; "
            f"predicted {predicted.tokens_per_s:.1f}, accepted length {predicted.accepted_length:.2f}"
        )
    for part, text in profile.provenance.items():
        print(f"{part}: {text}")


def _json(profile: Profile, rows: list[tuple[int, dict[str, Prediction]]]) -> dict[str, Any]:
    return {
        "rows": [
            {"concurrency": clients, "tokens_per_s": {mode: p.tokens_per_s for mode, p in row.items()}}
            for clients, row in rows
        ],
        "environment": {"simulated": profile.name, "provenance": profile.provenance},
    }


def _compare(profile: Profile, arguments: argparse.Namespace) -> int:
    """Hold predictions of the fixed modes against a run."""
    worst = 0.0
    print(f"{'clients':>8} {'mode':8}{'measured':>10}{'predicted':>11}{'ratio':>8}")
    for seen in observations(json.loads(arguments.against.read_text())):
        predicted = simulate(profile, simulated_mode(seen.mode, profile), seen.clients, arguments.seed).tokens_per_s
        ratio = predicted / seen.tokens_per_s
        worst = max(worst, abs(ratio - 1))
        print(f"{seen.clients:8} {seen.mode:8}{seen.tokens_per_s:10.1f}{predicted:11.1f}{ratio:8.2f}")
    print(f"worst miss {worst:.0%}, {arguments.within:.0%} allowed")
    return 0 if worst <= arguments.within else 1


def _calibrate(arguments: argparse.Namespace) -> int:
    profile = calibrate(json.loads(arguments.report.read_text()), arguments.name)
    save_profile(profile, arguments.output)
    print(f"{arguments.output}: profile {profile.name}, fitted to {arguments.report}")
    return 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _whole_numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in _words(text))
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers
