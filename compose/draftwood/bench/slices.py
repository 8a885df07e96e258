"""One slice of a run: one mode under one load.

A slice starts its clients with the requests that are the pair's own, waits for the steady state (`traffic`), measures
for a window, and breaks off what is under way. Only what arrived in the window counts, for every figure.
"""

from dataclasses import dataclass

from draftwood.bench import statistics
from draftwood.bench.modes import BenchMode
from draftwood.bench.traffic import Answer, Load, Traffic, Window
from draftwood.bench.workload import Workload
from draftwood_client import AsyncClient


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What clients saw. `gaps_s` has each token's share of the time since the message before the one it came in;
    `message_gaps_s` the time between messages, which is the length of a round.

    Counters are of requests that ended.
    """

    tokens_per_s: float
    tokens: int  # that came in the window
    first_token_s: list[float]
    gaps_s: list[float]
    message_gaps_s: list[float]
    committed: int
    rounds: int
    speculative_rounds: int
    proposed_nodes: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    refused: int
    answers: list[Answer]


async def run_slice(
    client: AsyncClient, mode: BenchMode, load: Load, workload: Workload, pair: int, window: Window
) -> Slice:
    """Raises DraftwoodError when the gateway fails a request for another reason than being full."""
    traffic = Traffic(client, mode)
    start, end = await load.steady(traffic, workload, pair, window)
    return measure(traffic.answers, start, end)


def measure(answers: list[Answer], start: float, end: float) -> Slice:
    gaps = [gap for answer in answers for gap in _gaps(answer, start, end)]
    usages = [a.usage for a in answers if a.usage is not None and a.arrivals and start <= a.arrivals[-1][0] <= end]
    firsts = [(a.arrivals[0][0], a.asked_at) for a in answers if a.arrivals]
    arrivals = [arrival for answer in answers for arrival in answer.arrivals]
    return Slice(
        tokens_per_s=statistics.rate(arrivals, start, end),
        tokens=sum(tokens for time, tokens in arrivals if start < time < end),
        first_token_s=[first - asked for first, asked in firsts if start <= first <= end],
        gaps_s=[seconds / tokens for seconds, tokens in gaps for _ in range(tokens)],
        message_gaps_s=[seconds for seconds, _ in gaps],
        committed=sum(usage.completion_tokens - 1 for usage in usages),
        rounds=sum(usage.rounds for usage in usages),
        speculative_rounds=sum(usage.speculative_rounds for usage in usages),
        proposed_nodes=sum(usage.proposed_nodes for usage in usages),
        requests=len(usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        refused=sum(answer.refused for answer in answers),
        answers=answers,
    )


def _gaps(answer: Answer, start: float, end: float) -> list[tuple[float, int]]:
    """(seconds since the message before, tokens) of each message in the window but an answer's first."""
    return [
        (time - before, tokens)
        for (before, _), (time, tokens) in zip(answer.arrivals, answer.arrivals[1:], strict=False)
        if start <= time <= end
    ]
