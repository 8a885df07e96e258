"""Records become metrics, and a full ring loses records instead of time."""

import re
import threading
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from draftwood_verifier.budget.policy import Decision
from draftwood_verifier.record import StepRecord
from draftwood_verifier.telemetry.metrics import VerifierMetrics
from draftwood_verifier.telemetry.rounds import take_apart
from draftwood_wire.metering import Meters
from draftwood_wire.recording import Recorder
from tests.unit.verifier.test_rounds import STEP, TREE, commit


def step(decision: Decision | None) -> StepRecord:
    return replace(STEP, decision=decision)


def test_the_budget_and_its_regret_are_told_when_there_was_a_decision() -> None:
    meters = Meters("test")
    metrics = VerifierMetrics(meters)
    done = take_apart(commit(), STEP, 9.99)  # three tokens in a tenth of a second
    for decision in (
        None,
        Decision(nodes=6, rate=40.0, plain_rate=20.0),
        Decision(nodes=3, rate=50.0, plain_rate=40.0),
    ):
        metrics.step(step(decision), [], [done])
    metrics.freeze()
    meters.freeze()
    text = generate_latest(meters.registry).decode()
    meters.close()
    for line in ("budget_nodes_count 2.0", "budget_nodes_sum 9.0", "budget_regret_count 2.0"):
        assert f"draftwood_verifier_{line}\n" in text
    regret_sum = re.search(r"draftwood_verifier_budget_regret_sum (\S+)", text)
    assert regret_sum is not None
    assert float(regret_sum[1]) == pytest.approx(0.25)
    assert "draftwood_verifier_steps_total 3.0\n" in text


def test_depths_count_whatever_goes_further_too() -> None:
    meters = Meters("test")
    metrics = VerifierMetrics(meters)
    deep = commit()  # a tree of depth 2, two nodes accepted
    flat = commit(tree=TREE.cut(2), tokens=[9], rows=[0], nodes=[0])
    metrics.step(STEP, [], [take_apart(each, STEP, 9.99) for each in (deep, flat, flat)])
    metrics.freeze()
    text = generate_latest(meters.registry).decode()
    meters.close()
    told = re.findall(r'draftwood_verifier_depth_(\w+)_total\{draftwood_depth="(\d)"\} (\S+)', text)
    assert sorted(told) == [
        ("accepted", "1", "1.0"),
        ("accepted", "2", "1.0"),
        ("proposed", "1", "3.0"),
        ("proposed", "2", "1.0"),
    ]


def test_what_the_gpu_worked_is_told_where_there_is_one() -> None:
    meters = Meters("test")
    metrics = VerifierMetrics(meters)
    for device_s in (0.0, 0.04):
        metrics.step(replace(STEP, device_s=device_s), [], [])
    meters.freeze()
    text = generate_latest(meters.registry).decode()
    meters.close()
    assert "draftwood_verifier_verify_duration_seconds_count 2.0\n" in text
    assert "draftwood_verifier_device_duration_seconds_count 1.0\n" in text
    assert "draftwood_verifier_device_duration_seconds_sum 0.04\n" in text


def test_counts_of_a_scrape_are_those_of_its_freeze() -> None:
    meters = Meters("test")
    metrics = VerifierMetrics(meters)
    metrics.step(step(None), [], [])
    metrics.freeze()
    meters.freeze()
    metrics.step(step(None), [], [])
    text = generate_latest(meters.registry).decode()
    meters.close()
    assert "draftwood_verifier_steps_total 1.0\n" in text
    assert "draftwood_verifier_step_duration_seconds_count 1.0\n" in text


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
