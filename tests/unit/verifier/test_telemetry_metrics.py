"""Records become metrics, and a full ring loses records instead of time."""

import threading

from prometheus_client import generate_latest

from draftwood_verifier.engine import BudgetDecision, StepRecord
from draftwood_verifier.telemetry.metrics import VerifierMetrics
from draftwood_wire.metering import Meters
from draftwood_wire.recording import Recorder


def step(budget: BudgetDecision | None) -> StepRecord:
    return StepRecord(
        number=1, started_at=1.0, executed_at=1.5, finished_at=2.0, segments=[], commits=[], budget=budget
    )


def test_the_budget_and_its_regret_are_told_when_there_was_a_decision() -> None:
    meters = Meters("test")
    metrics = VerifierMetrics(meters)
    for budget in (None, BudgetDecision(nodes=6), BudgetDecision(nodes=0, regret=0.25)):
        metrics.step(step(budget), [], [])
    metrics.freeze()
    text = generate_latest(meters.registry).decode()
    meters.close()
    for line in ("budget_nodes_count 2.0", "budget_nodes_sum 6.0", "budget_regret_count 1.0", "budget_regret_sum 0.25"):
        assert f"draftwood_verifier_{line}\n" in text
    assert "draftwood_verifier_steps_total 3.0\n" in text


def test_counts_of_a_scrape_are_those_of_its_freeze() -> None:
    meters = Meters("test")
    metrics = VerifierMetrics(meters)
    metrics.freeze()
    metrics.step(step(None), [], [])
    assert "draftwood_verifier_steps_total 0.0\n" in generate_latest(meters.registry).decode()
    meters.close()


def test_a_full_ring_counts_what_it_loses_and_never_blocks() -> None:
    entered, go_on = threading.Event(), threading.Event()
    taken: list[int] = []

    def consume(record: int) -> None:
        entered.set()
        go_on.wait(10)
        taken.append(record)

    recorder = Recorder(consume, capacity=3)
    recorder.put(0)
    assert entered.wait(10)
    for record in range(1, 6):
        recorder.put(record)
    assert recorder.dropped == 2
    go_on.set()
    recorder.close()
    assert taken == [0, 1, 2, 3]


def test_a_record_that_breaks_its_consumer_is_only_lost(caplog) -> None:
    taken: list[int] = []

    def consume(record: int) -> None:
        taken.append(10 // record)

    recorder = Recorder(consume)
    for record in (0, 5):
        recorder.put(record)
    recorder.close()
    assert taken == [2]
    assert "lost a record" in caplog.text
