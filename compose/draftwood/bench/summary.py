"""What a run says: per load, each mode's figures and how auto stands against plain and the best fixed mode."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from draftwood.bench.interleaving import Measured, Plan
from draftwood.bench.modes import AUTO, PLAIN, TREE_PREFIX, BenchMode
from draftwood.bench.slices import Slice
from draftwood.bench.statistics import LEAST_VALUES, median_interval, percentile, sign_test
from draftwood.bench.traffic import Closed


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """One mode under one load: speeds a pair and their median, the rest over all pairs; None where nothing ended."""

    tokens_per_s: float
    pairs_tokens_per_s: list[float]
    against_plain: float | None  # median of the pairs' ratios
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None
    round_p50_s: float | None
    rounds: int
    accepted_length: float | None
    nodes_a_round: float | None
    plain_steps: float | None  # share of rounds that looked at no tree
    mean_prompt_tokens: float | None
    cached_tokens: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Auto within the pairs. `slower_p` is the sign test's chance of winning as few pairs as it did, by luck alone.

    Of fixed modes that are equally fast, the best by the same pairs is the luckiest. `against_best_elsewhere` compares
    auto in each pair with the mode that is best by all the others; None of one pair. The interval is where its median
    lies with 95 % confidence; None of too few pairs to say so.
    """

    best_fixed: str
    against_best: float
    against_best_elsewhere: float | None
    elsewhere_interval: tuple[float, float] | None
    regret: float
    wins: int
    slower_p: float


@dataclass(frozen=True, kw_only=True)
class LoadSummary:
    load: float
    modes: dict[str, ModeFigures]
    verdict: Verdict | None  # needs auto and plain

    @property
    def best_tree(self) -> str | None:
        return best([name for name in self.modes if name.startswith(TREE_PREFIX)], self.modes)


def summarise(plan: Plan, measured: Measured) -> list[LoadSummary]:
    return [_load(plan.modes, load.value, measured) for load in plan.loads]


def best(names: Sequence[str], modes: dict[str, ModeFigures]) -> str | None:
    return max(names, key=lambda name: modes[name].tokens_per_s, default=None)


def as_row(plan: Plan, summary: LoadSummary) -> dict[str, Any]:
    """The row of the report's JSON: `tree` is the tree at its best fixed size, whose name is `best_tree`."""
    closed = isinstance(plan.loads[0], Closed)
    speeds = {name: f.tokens_per_s for name, f in summary.modes.items() if not name.startswith(TREE_PREFIX)}
    if summary.best_tree is not None:
        speeds["tree"] = summary.modes[summary.best_tree].tokens_per_s
    return {
        **({"concurrency": int(summary.load)} if closed else {"rate": summary.load}),
        "tokens_per_s": speeds,
        "best_tree": summary.best_tree,
        "modes": {name: asdict(figures) for name, figures in summary.modes.items()},
        "auto": None if summary.verdict is None else asdict(summary.verdict),
    }


def _load(modes: Sequence[BenchMode], load: float, measured: Measured) -> LoadSummary:
    plain = measured.slices.get((load, PLAIN))
    figures = {mode.name: _figures(measured.of(load, mode.name), plain) for mode in modes}
    return LoadSummary(load=load, modes=figures, verdict=_verdict(modes, figures))


def _figures(slices: list[Slice], plain: list[Slice] | None) -> ModeFigures:
    speeds = [s.tokens_per_s for s in slices]
    first, gaps = _joined([s.first_token_s for s in slices]), _joined([s.gaps_s for s in slices])
    rounds, requests = sum(s.rounds for s in slices), sum(s.requests for s in slices)
    return ModeFigures(
        tokens_per_s=median(speeds),
        pairs_tokens_per_s=speeds,
        against_plain=None if plain is None else median(_ratios(speeds, [s.tokens_per_s for s in plain])),
        ttft_p50_s=percentile(first, 0.5),
        ttft_p95_s=percentile(first, 0.95),
        itl_p50_s=percentile(gaps, 0.5),
        itl_p95_s=percentile(gaps, 0.95),
        itl_p99_s=percentile(gaps, 0.99),
        round_p50_s=percentile(_joined([s.message_gaps_s for s in slices]), 0.5),
        rounds=rounds,
        accepted_length=sum(s.committed for s in slices) / rounds if rounds else None,
        nodes_a_round=sum(s.proposed_nodes for s in slices) / rounds if rounds else None,
        plain_steps=1 - sum(s.speculative_rounds for s in slices) / rounds if rounds else None,
        mean_prompt_tokens=sum(s.prompt_tokens for s in slices) / requests if requests else None,
        cached_tokens=sum(s.cached_tokens for s in slices),
        refused=sum(s.refused for s in slices),
    )


def _verdict(modes: Sequence[BenchMode], figures: dict[str, ModeFigures]) -> Verdict | None:
    if AUTO not in figures or PLAIN not in figures:
        return None
    fixed = [mode.name for mode in modes if mode.fixed]
    best_fixed = best(fixed, figures)
    assert best_fixed is not None, "plain is a fixed mode"
    auto, plain = figures[AUTO].pairs_tokens_per_s, figures[PLAIN].pairs_tokens_per_s
    against_best = median(_ratios(auto, figures[best_fixed].pairs_tokens_per_s))
    differences = [a - p for a, p in zip(auto, plain, strict=True)]
    elsewhere = _against_best_elsewhere(auto, [figures[name].pairs_tokens_per_s for name in fixed])
    return Verdict(
        best_fixed=best_fixed,
        against_best=against_best,
        against_best_elsewhere=median(elsewhere) if elsewhere else None,
        elsewhere_interval=median_interval(elsewhere) if len(elsewhere) >= LEAST_VALUES else None,
        regret=1 - against_best,
        wins=sum(difference > 0 for difference in differences),
        slower_p=sign_test(differences),
    )


def _against_best_elsewhere(auto: list[float], fixed: list[list[float]]) -> list[float]:
    """The ratio of each pair; none of a single one."""
    if len(auto) < 2:
        return []
    bars = [
        max(fixed, key=lambda speeds: median(speed for other, speed in enumerate(speeds) if other != pair))[pair]
        for pair in range(len(auto))
    ]
    return _ratios(auto, bars)


def _ratios(speeds: list[float], others: list[float]) -> list[float]:
    return [speed / other if other else float("inf") for speed, other in zip(speeds, others, strict=True)]


def _joined(lists: list[list[float]]) -> list[float]:
    return [value for values in lists for value in values]
