"""What is made of the slices: windows, equality, verdicts and the row of the JSON."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from draftwood.bench.equality import Equality
from draftwood.bench.interleaving import Measured, Plan, run_interleaved
from draftwood.bench.modes import bench_modes
from draftwood.bench.slices import Slice, measure
from draftwood.bench.summary import _against_best_elsewhere, as_row, summarise
from draftwood.bench.traffic import Answer, Closed, Open, Traffic, Window
from draftwood.bench.workload import BenchRequest, Workload
from draftwood_client import Usage

REQUEST = BenchRequest(prompt="x", output_tokens=4)


def answer(token_ids: list[int], times: list[float] | None = None, *, rounds: int = 2, speculative: int = 1) -> Answer:
    usage = Usage(
        prompt_tokens=5,
        completion_tokens=len(token_ids),
        cached_tokens=0,
        rounds=rounds,
        speculative_rounds=speculative,
        proposed_nodes=8,
        accepted_nodes=1,
    )
    arrivals = [(time, 1) for time in times or []]
    return Answer(request=REQUEST, asked_at=0.0, arrivals=arrivals, token_ids=token_ids, usage=usage)


def make_slice(tokens_per_s: float) -> Slice:
    outcome = measure([], 0.0, 1.0)
    return Slice(**{**vars(outcome), "tokens_per_s": tokens_per_s})


def test_only_the_window_counts() -> None:
    early, inside = answer([1, 2], [0.5, 0.9]), answer([1, 2, 3, 4], [1.2, 1.3, 1.5, 1.9])
    outcome = measure([early, inside], 1.0, 2.0)
    assert outcome.first_token_s == pytest.approx([1.2])
    assert outcome.message_gaps_s == pytest.approx([0.1, 0.2, 0.4])
    assert (outcome.committed, outcome.rounds, outcome.requests, outcome.proposed_nodes) == (3, 2, 1, 8)


def test_a_message_of_many_tokens_shares_its_gap_among_them() -> None:
    together = answer([1, 2, 3, 4])
    together.arrivals = [(1.2, 1), (1.5, 3)]
    assert measure([together], 1.0, 2.0).gaps_s == pytest.approx([0.1, 0.1, 0.1])


def test_answers_are_compared_as_far_as_they_go() -> None:
    equality = Equality()
    equality.add("plain", [answer([1, 2, 3])])
    equality.add("tree-4", [answer([1, 2, 3, 4])])
    assert (equality.compared_tokens, equality.different) == (3, [])
    equality.add("auto", [answer([1, 2, 3, 5])])
    assert len(equality.different) == 1
    assert str(equality.different[0]).startswith("auto and tree-4 differ at token 3 of ")
    assert (equality.different[0].shared, equality.different[0].token_ids) == ([1, 2, 3], (5, 4))


def test_verdict_and_row() -> None:
    plan = Plan(
        modes=bench_modes(["plain", "chain", "tree", "auto"], (4, 10)),
        loads=[Closed(clients=2, warm_up_tokens=0)],
        pairs=3,
        window_s=1.0,
        workload=Workload(texts=["x"], seed=0),
    )
    speeds = {
        "plain": [100, 90, 110],
        "chain": [120, 130, 110],
        "tree-4": [150, 140, 160],
        "tree-10": [100, 100, 100],
        "auto": [147, 147, 144],
    }
    slices = {(2, mode): [make_slice(float(speed)) for speed in values] for mode, values in speeds.items()}
    (summary,) = summarise(plan, Measured(slices=slices, equality=Equality(), windows={}))
    verdict = summary.verdict
    assert verdict is not None
    assert (verdict.best_fixed, verdict.wins) == ("tree-4", 3)
    assert verdict.against_best == pytest.approx(0.98)
    assert verdict.regret == pytest.approx(0.02)
    assert verdict.against_best_elsewhere == pytest.approx(0.98)
    assert verdict.elsewhere_interval is None
    row = as_row(plan, summary)
    assert row["concurrency"] == 2
    assert row["tokens_per_s"] == {"plain": 100, "chain": 120, "tree": 150, "auto": 147}
    assert row["best_tree"] == "tree-4"


def test_the_bar_of_a_pair_is_set_by_the_others() -> None:
    lucky, steady = [150.0, 100.0, 100.0, 100.0], [110.0, 120.0, 100.0, 110.0]
    assert _against_best_elsewhere([110.0] * 4, [lucky, steady]) == pytest.approx([1.0, 110 / 120, 1.1, 1.0])
    # Best of all by its luck in the first pair, which is not asked about itself.
    lucky, steady = [200.0, 90.0, 105.0], [100.0] * 3
    assert _against_best_elsewhere([100.0] * 3, [lucky, steady]) == pytest.approx([1.0, 100 / 90, 100 / 105])
    assert _against_best_elsewhere([100.0], [[50.0]]) == []


@pytest.mark.parametrize(("clients", "slices"), [(1, 4), (4, 4), (5, 3), (8, 2), (9, 1), (64, 1)])
def test_few_clients_have_more_slices(clients: int, slices: int) -> None:
    assert Closed(clients=clients, warm_up_tokens=0).slices == slices
    assert Open(rate=clients).slices == 1


class _Endless:
    """A client whose answers come three tokens at a time, in turns, until the output is long enough."""

    async def stream(self, _: str, *, max_tokens: int, **__: object) -> AsyncIterator[SimpleNamespace]:
        for first in range(0, max_tokens, 3):
            await asyncio.sleep(0)
            yield SimpleNamespace(token_ids=list(range(first, min(first + 3, max_tokens))), usage=None)


def test_a_window_is_as_long_as_so_many_tokens_take() -> None:
    async def body() -> None:
        traffic = Traffic(_Endless(), bench_modes(["plain"], ())[0])  # type: ignore[arg-type]
        load = Closed(clients=2, warm_up_tokens=10)
        window = Window(seconds=1e9, tokens=300)
        start, end = await load.steady(traffic, Workload(texts=["x"], seed=0), 0, window)
        outcome = measure(traffic.answers, start, end)
        before = sum(tokens for answer in traffic.answers for time, tokens in answer.arrivals if time <= start)
        # To a message of each client.
        assert before == pytest.approx(20, abs=6)
        assert outcome.tokens == pytest.approx(300, abs=6)
        assert outcome.requests == 0  # none of them has usage

    asyncio.run(body())


def test_all_slices_of_a_load_but_the_first_go_on_for_as_many_tokens() -> None:
    async def body() -> None:
        plan = Plan(
            modes=bench_modes(["plain", "chain"], ()),
            loads=[Closed(clients=8, warm_up_tokens=10)],
            pairs=2,
            window_s=0.02,
            workload=Workload(texts=["x"], seed=0),
        )
        measured = await run_interleaved(_Endless(), None, plan, lambda _: None)  # type: ignore[arg-type]
        tokens = [one.tokens for mode in ("plain", "chain") for one in measured.of(8, mode)]
        assert len(tokens) == 2 * 4
        assert tokens == pytest.approx([measured.windows[8].tokens] * 8, abs=24)  # to a message of each client

    asyncio.run(body())


@pytest.mark.parametrize(("clients", "length"), [(1, 0.5), (8, 0.5), (9, 1.0), (16, 1.0), (64, 4.0)])
def test_rounds_of_many_clients_are_longer_and_so_are_their_windows(clients: int, length: float) -> None:
    assert Closed(clients=clients, warm_up_tokens=0)._length == length


def test_a_warm_up_counts_tokens() -> None:
    async def body() -> None:
        traffic = Traffic(None, None)  # type: ignore[arg-type]
        await traffic.more(0)
        await traffic.more(-1)
        waiting = asyncio.create_task(traffic.more(5))
        await asyncio.sleep(0)
        traffic._count(4)
        await asyncio.sleep(0)
        assert not waiting.done()
        traffic._count(2)
        await waiting

    asyncio.run(body())


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'bush' is not one of"):
        bench_modes(["bush"], (4,))
