"""Histograms look to Prometheus as the SDK's own instruments do."""

import random

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from draftwood_wire import telemetry as names
from draftwood_wire.histogram import Histogram
from draftwood_wire.metering import Meters
from draftwood_wire.telemetry import Metric

ROUTES = ("/v1/completions", "/v1/chat/completions", "other")


def observed_meters() -> Meters:
    meters = Meters("test")
    meters.observe_value(names.RECORDS_DROPPED, lambda: 0)
    return meters


def told_by_the_sdk(metric: Metric, values: list[tuple[float, str]]) -> list[str]:
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry, scope_info_enabled=False)])
    made = provider.get_meter("draftwood").create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.text,
        explicit_bucket_boundaries_advisory=list(metric.buckets),
    )
    for value, route in values:
        made.record(value, {names.ROUTE: route} if metric.labels else {})
    text = lines_of(registry)
    provider.shutdown()
    return text


def told_by_ours(metric: Metric, values: list[tuple[float, str]]) -> list[str]:
    meters = observed_meters()
    histogram = meters.histogram(metric)
    for value, route in values:
        histogram(value, *([route] if metric.labels else []))
    meters.freeze()
    text = lines_of(meters.registry)
    meters.close()
    return text


def lines_of(registry: CollectorRegistry) -> list[str]:
    """Without those of metrics that only one of the two has."""
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "target" not in line and "dropped" not in line]


@pytest.mark.parametrize("metric", [names.STEP_DURATION, names.GATEWAY_DURATION, names.BUDGET_NODES])
def test_buckets_sums_and_labels_are_those_of_the_sdk(metric: Metric) -> None:
    draw = random.Random(7)
    # On the bounds as well, and beyond both ends.
    values = [0.0, *metric.buckets, 2 * metric.buckets[-1], *(draw.expovariate(5.0) for _ in range(200))]
    told = [(value, draw.choice(ROUTES)) for value in values]
    ours = told_by_ours(metric, told)
    assert ours == told_by_the_sdk(metric, told)
    assert len(ours) > len(metric.buckets)


def test_a_histogram_without_values_is_not_told() -> None:
    assert told_by_ours(names.STEP_DURATION, []) == []


def test_labels_that_the_metric_does_not_have_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="step_duration"):
        Histogram(names.STEP_DURATION)(1.0, "/v1/completions")
    with pytest.raises(AssertionError, match="request_duration"):
        Histogram(names.GATEWAY_DURATION)(1.0)
