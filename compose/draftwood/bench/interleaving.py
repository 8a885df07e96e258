"""All slices of a run, interleaved: a machine that slows down for a while slows all modes alike.

Round by round over all loads, and within a load pair by pair, every mode gets one slice on the same requests, in an
order that is shuffled by the seed. Figures of two modes are compared within a pair only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwood.bench.equality import Equality
from draftwood.bench.modes import BenchMode
from draftwood.bench.prefix_cache import PrefixCache
from draftwood.bench.slices import Slice, run_slice
from draftwood.bench.traffic import Load, Window
from draftwood.bench.workload import Workload
from draftwood_client import AsyncClient

_WARM_UP_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    modes: Sequence[BenchMode]
    loads: Sequence[Load]
    pairs: int  # of a load that has one in a round over all of them
    window_s: float
    workload: Workload


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Slices by load and mode name, one a pair; by load, what all but the first of them were measured for."""

    slices: dict[tuple[float, str], list[Slice]]
    equality: Equality
    windows: dict[float, Window]

    def of(self, load: float, mode: str) -> list[Slice]:
        return self.slices[load, mode]


async def run_interleaved(
    client: AsyncClient, cache: PrefixCache | None, plan: Plan, progress: Callable[[str], None]
) -> Measured:
    """Raises DraftwoodError when the gateway fails a request. Without a `cache` it is left as it is."""
    for mode in plan.modes:
        for load in (plan.loads[0], plan.loads[-1]):
            await run_slice(client, mode, load, plan.workload, -1, Window(seconds=_WARM_UP_S))
    measured = Measured(slices={}, equality=Equality(), windows={})
    for number in range(plan.pairs):
        for load in plan.loads:
            for pair in range(number * load.slices, (number + 1) * load.slices):
                await _one_pair(client, cache, plan, load, pair, measured)
                progress(_line(plan, load, pair, measured))
    return measured


async def _one_pair(
    client: AsyncClient, cache: PrefixCache | None, plan: Plan, load: Load, pair: int, measured: Measured
) -> None:
    order = list(plan.modes)
    plan.workload.draws("order", pair, load.value).shuffle(order)
    measured.equality.forget()
    for mode in order:
        if cache is not None:
            await cache.empty()
        window = measured.windows.get(load.value, Window(seconds=plan.window_s))
        outcome = await run_slice(client, mode, load, plan.workload, pair, window)
        measured.windows.setdefault(load.value, Window(seconds=plan.window_s, tokens=outcome.tokens))
        measured.equality.add(mode.name, outcome.answers)
        outcome.answers.clear()
        measured.slices.setdefault((load.value, mode.name), []).append(outcome)


def _line(plan: Plan, load: Load, pair: int, measured: Measured) -> str:
    speeds = (f"{mode.name} {measured.of(load.value, mode.name)[-1].tokens_per_s:.0f}" for mode in plan.modes)
    return f"pair {pair + 1} of {plan.pairs * load.slices}, load {load.value:g}: {', '.join(speeds)} tokens/s"
