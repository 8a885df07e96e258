"""A profile from a run of `draftwood bench load` on the machine: what steps, drafts and trees must cost and bring, so
that closed loops of the fixed modes give the speeds that were measured.

The length of a round is clients * accepted length / tokens a second. Least squares, relative and over all loads and
fixed modes, explain it by rows (prompt rows included), sessions and drafts; accepted lengths by two kinds of rounds.
Auto takes no part in it.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwood.bench.modes import AUTO, CHAIN, TREE_PREFIX
from draftwood.bench.workload import PROMPT_CHARACTERS
from draftwood.simulation.acceptance import RoundKind, best_first, chain, mean_expected
from draftwood.simulation.cost import DraftCost, StepCost
from draftwood.simulation.profile import Profile

# Rows between which a step's cost is a straight line.
_KNOTS = (1.0, 8.0, 32.0, 128.0, 512.0, 2048.0)
_RANKS = 4
_ITERATIONS = 20_000


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One fixed mode under one load; `nodes` looked at a session and round."""

    clients: int
    mode: str
    tokens_per_s: float
    accepted_length: float
    rounds: int
    nodes: float


def observations(report: dict[str, Any]) -> list[Observation]:
    """Of a closed-loop report. Raises ValueError when it has none, or requests of one of them never ended."""
    found = [
        Observation(
            clients=row["concurrency"],
            mode=mode,
            tokens_per_s=figures["tokens_per_s"],
            accepted_length=figures["accepted_length"] or 1.0,
            rounds=figures["rounds"],
            nodes=figures["nodes_a_round"] or 0.0,
        )
        for row in report["rows"]
        if "concurrency" in row
        for mode, figures in row["modes"].items()
        if mode != AUTO
    ]
    if len({o.mode for o in found}) < 3 or len({o.clients for o in found}) < 2:
        raise ValueError("a calibration needs plain, chain and trees under two closed loads or more")
    return found


def calibrate(report: dict[str, Any], name: str) -> Profile:
    """Raises ValueError when the report can't be calibrated from."""
    seen = observations(report)
    prompt_tokens = _mean_prompt(report)
    shortest, longest = report["environment"]["output_tokens"]
    step, draft = _fit_costs(seen, prompt_tokens / _log_uniform_mean(shortest, longest))
    low, high = PROMPT_CHARACTERS
    scale = prompt_tokens / _log_uniform_mean(low, high)
    source = f"fitted to a run of draftwood bench load on: {report['environment']['machine']}"
    return Profile(
        name=name,
        provenance={
            "step": source,
            "draft": f"{source}; the way to the drafter and back is in it",
            "acceptance": f"{source}; two kinds of rounds, ranks falling geometrically, the same at every depth",
            "prompt_tokens": "mean of that run, over the range of characters that the bench draws from",
            "known": "draftwood simulate --against compares with a run",
        },
        step=step,
        draft=draft,
        round_trip_s=0.0,
        acceptance=_fit_acceptance(_accepted_lengths(seen)),
        prompt_tokens=(max(1, round(low * scale)), round(high * scale)),
        output_tokens=(shortest, longest),
        node_limit=max(round(o.nodes) for o in seen),
        prefill_chunk=256,
        max_batch=64,
    )


def _fit_costs(seen: list[Observation], prompt_per_token: float) -> tuple[StepCost, DraftCost]:
    lengths = {mode: length for mode, (length, _) in _accepted_lengths(seen).items()}
    rounds = np.array([o.clients * lengths[o.mode] / o.tokens_per_s for o in seen])
    rows = [o.clients * (1 + o.nodes + lengths[o.mode] * prompt_per_token) for o in seen]
    causes = np.array(
        [
            [1.0, *_pieces(r), o.clients, float(o.nodes > 0), o.clients * (o.nodes > 0)]
            for r, o in zip(rows, seen, strict=True)
        ]
    )
    weights = non_negative_least_squares(causes / rounds[:, None], np.ones(len(rounds)))
    base, slopes = weights[0], weights[1 : len(_KNOTS)]
    per_session, per_draft, per_drafted = weights[len(_KNOTS) :]
    at_knots = base + np.cumsum([0.0, *(slopes * np.diff(_KNOTS))])
    return (
        StepCost(
            rows=_KNOTS,
            context=(0.0,),
            seconds=tuple((float(s),) for s in at_knots),
            session_seconds=(float(per_session),),
        ),
        DraftCost(sessions=(1.0, 64.0), seconds=(float(per_draft + per_drafted), float(per_draft + 64 * per_drafted))),
    )


def _pieces(rows: float) -> list[float]:
    """How many of the rows lie between each two knots; beyond the last, the last piece goes on."""
    ends = [*_KNOTS[1:-1], math.inf]
    return [max(0.0, min(rows, end) - start) for start, end in zip(_KNOTS, ends, strict=False)]


def non_negative_least_squares(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """x >= 0 that minimises |a x - b|, by coordinate descent; a [equations, unknowns], b [equations]."""
    scale = np.maximum(np.linalg.norm(a, axis=0), 1e-12)
    gram, target = (a / scale).T @ (a / scale), (a / scale).T @ b
    x = np.zeros(a.shape[1])
    for _ in range(_ITERATIONS):
        before = x.copy()
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (target[i] - gram[i] @ x) / max(gram[i, i], 1e-12))
        if np.abs(x - before).max() < 1e-12:
            break
    solution: NDArray[np.float64] = x / scale
    return solution


def _accepted_lengths(seen: list[Observation]) -> dict[str, tuple[float, float]]:
    """(accepted length, nodes) of each mode over all loads, by rounds."""
    found = {}
    for mode in {o.mode: None for o in seen}:
        own = [o for o in seen if o.mode == mode]
        rounds = max(1, sum(o.rounds for o in own))
        length = sum(o.accepted_length * o.rounds for o in own) / rounds
        found[mode] = (length or 1.0, sum(o.nodes * o.rounds for o in own) / rounds)
    return found


def _fit_acceptance(lengths: dict[str, tuple[float, float]]) -> tuple[RoundKind, ...]:
    depth = max(1, round(lengths[CHAIN][1])) if CHAIN in lengths else 1
    trees = {int(mode.removeprefix(TREE_PREFIX)): a for mode, (a, _) in lengths.items() if mode.startswith(TREE_PREFIX)}

    def error(kinds: tuple[RoundKind, ...]) -> float:
        grown = [best_first(kind, max(trees, default=1)) for kind in kinds]
        misses = [mean_expected(kinds, grown, nodes) / a - 1 for nodes, a in trees.items()]
        if CHAIN in lengths:
            misses.append(mean_expected(kinds, [chain(kind, depth) for kind in kinds], depth) / lengths[CHAIN][0] - 1)
        return sum(miss * miss for miss in misses)

    return min(_kinds(depth), key=error)


def _kinds(depth: int) -> Iterator[tuple[RoundKind, ...]]:
    """A grid over the share of easy rounds, the first choice's probability in both kinds, and how ranks fall."""
    for share, easy, hard, fall in itertools.product(
        np.arange(0.1, 0.91, 0.1), np.arange(0.8, 0.99, 0.03), np.arange(0.2, 0.75, 0.05), np.arange(0.1, 0.75, 0.1)
    ):
        yield tuple(
            RoundKind(share=round(float(part), 3), ranks=(_ranks(float(first), float(fall)),) * depth)
            for part, first in ((share, easy), (1 - share, hard))
        )


def _ranks(first: float, fall: float) -> tuple[float, ...]:
    rest = 1 - first
    others = [rest * fall * (1 - fall) ** rank for rank in range(_RANKS - 1)]
    return tuple(round(p, 4) for p in sorted((first, *others), reverse=True))


def _mean_prompt(report: dict[str, Any]) -> float:
    figures = [f for row in report["rows"] for f in row["modes"].values() if f["mean_prompt_tokens"]]
    if not figures:
        raise ValueError("no request of the run ended: measure with a longer --window-s")
    return float(mean(f["mean_prompt_tokens"] for f in figures))


def _log_uniform_mean(low: float, high: float) -> float:
    return low if low == high else (high - low) / math.log(high / low)
