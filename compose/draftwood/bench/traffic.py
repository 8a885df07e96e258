"""Clients of the gateway with the clock running: closed loop (each asks again at once) and open loop (Poisson)."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from draftwood.bench.modes import BenchMode
from draftwood.bench.workload import BenchRequest, Workload
from draftwood_client import AsyncClient, Usage
from draftwood_wire.errors import Overloaded

_TIMEOUT_S = 300.0
# A round of more clients takes longer in proportion: from here on windows grow with them, to hold as many rounds.
_SHORT_ROUND_CLIENTS = 16
# Fewer clients have more slices in the same time, each of half a window. What the machine does differs by 6 % between
# two slices of one client, whether they are a second long or eight; so it is their number that counts.
_MOST_SLICES = 4


@dataclass(kw_only=True)
class Answer:
    """One request as its client saw it; arrivals are (time, tokens). An answer that was broken off has no usage."""

    request: BenchRequest
    asked_at: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    usage: Usage | None = None
    refused: bool = False


class Traffic:
    """Answers of one slice, as they come."""

    def __init__(self, client: AsyncClient, mode: BenchMode) -> None:
        self.answers: list[Answer] = []
        self._client = client
        self._mode = mode
        self.tokens = 0  # that have come, of all answers
        self._wanted = 0
        self._reached = asyncio.Event()

    async def ask(self, request: BenchRequest, begun: asyncio.Event | None = None) -> None:
        """One request to its end. Raises DraftwoodError; a server that is full makes it a refused answer."""
        answer = Answer(request=request, asked_at=perf_counter())
        self.answers.append(answer)
        stream = self._client.stream(
            request.prompt,
            max_tokens=request.output_tokens,
            ignore_eos=True,
            speculation=self._mode.speculation,
            node_limit=self._mode.node_limit,
            timeout_s=_TIMEOUT_S,
        )
        try:
            async for chunk in stream:
                if chunk.token_ids:
                    self._count(len(chunk.token_ids))
                    answer.arrivals.append((perf_counter(), len(chunk.token_ids)))
                    answer.token_ids += chunk.token_ids
                    if begun is not None:
                        begun.set()
                answer.usage = chunk.usage
        except Overloaded:
            answer.refused = True

    async def more(self, tokens: int) -> None:
        """Return when so many more have come; one at a time may wait."""
        self._wanted = self.tokens + tokens
        self._reached.clear()
        if tokens > 0:
            await self._reached.wait()

    def _count(self, tokens: int) -> None:
        self.tokens += tokens
        if self.tokens >= self._wanted:
            self._reached.set()


@dataclass(frozen=True, kw_only=True)
class Window:
    """How long a slice is measured: of a closed loop until so many tokens have come, else for so many seconds.

    The same tokens of the same texts for every mode: with one client, a second of one text brought 20 % more or fewer
    tokens a round than the next one.
    """

    seconds: float
    tokens: int | None = None


class Load(Protocol):
    """How requests come."""

    @property
    def value(self) -> float:
        """Clients, or requests a second."""

    @property
    def slices(self) -> int:
        """Of each mode, in the place of one."""

    async def steady(self, traffic: Traffic, workload: Workload, pair: int, window: Window) -> tuple[float, float]:
        """Bring the load to its steady state, hold it for a window, break off; returns the window's start and end."""


@dataclass(frozen=True, kw_only=True)
class Closed:
    """`clients` that each ask again as soon as they are answered.

    Steady: every one has its first token, and as many tokens as a warm-up takes have come.
    """

    clients: int
    warm_up_tokens: int  # of each client, on average

    @property
    def value(self) -> float:
        return self.clients

    @property
    def slices(self) -> int:
        return min(_MOST_SLICES, max(1, _SHORT_ROUND_CLIENTS // self.clients))

    async def steady(self, traffic: Traffic, workload: Workload, pair: int, window: Window) -> tuple[float, float]:
        begun = [asyncio.Event() for _ in range(self.clients)]
        loops = [
            self._loop(traffic, workload.client(pair, self.clients, number), event)
            for number, event in enumerate(begun)
        ]

        async def measure() -> tuple[float, float]:
            await asyncio.gather(*(event.wait() for event in begun))
            await traffic.more(self.warm_up_tokens * self.clients - traffic.tokens)
            start = perf_counter()
            if window.tokens is None:
                await asyncio.sleep(window.seconds * self._length)
            else:
                await traffic.more(window.tokens)
            return start, perf_counter()

        return await _beside(measure(), loops)

    @property
    def _length(self) -> float:
        """Of a window, where one of 16 clients is 1."""
        return 0.5 if self.slices > 1 else max(1.0, self.clients / _SHORT_ROUND_CLIENTS)

    async def _loop(self, traffic: Traffic, requests: Iterator[BenchRequest], begun: asyncio.Event) -> None:
        for request in requests:
            await traffic.ask(request, begun)


@dataclass(frozen=True, kw_only=True)
class Open:
    """Requests that come by chance, `rate` a second on average. Steady: half a window has passed."""

    rate: float

    @property
    def value(self) -> float:
        return self.rate

    @property
    def slices(self) -> int:
        return 1

    async def steady(self, traffic: Traffic, workload: Workload, pair: int, window: Window) -> tuple[float, float]:
        async def measure() -> tuple[float, float]:
            await asyncio.sleep(window.seconds / 2)
            start = perf_counter()
            await asyncio.sleep(window.seconds)
            return start, perf_counter()

        return await _beside(measure(), [self._arrive(traffic, workload, pair)])

    async def _arrive(self, traffic: Traffic, workload: Workload, pair: int) -> None:
        draws = workload.draws(pair, f"rate {self.rate}")
        due = perf_counter()
        async with asyncio.TaskGroup() as group:
            while True:
                due += draws.expovariate(self.rate)
                await asyncio.sleep(max(0.0, due - perf_counter()))
                group.create_task(traffic.ask(workload.request(draws)))


async def _beside(
    measure: Coroutine[None, None, tuple[float, float]], loops: list[Coroutine[None, None, None]]
) -> tuple[float, float]:
    """Measure beside loops that never end by themselves; raises what ended one of them."""
    measuring = asyncio.create_task(measure)
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        done, _ = await asyncio.wait([measuring, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {measuring}:
            task.result()
        return await measuring
    finally:
        for task in (measuring, *tasks):
            task.cancel()
        await asyncio.gather(measuring, *tasks, return_exceptions=True)
