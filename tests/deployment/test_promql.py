"""The check of names in Prometheus expressions finds what it is there for."""

import pytest

from draftwood_wire.telemetry import Kind
from tests.deployment.promql import Exposed, complaints

SERIES = {
    "draftwood_tokens_total": Exposed(kind=Kind.COUNTER, labels=frozenset()),
    "draftwood_queue": Exposed(kind=Kind.GAUGE, labels=frozenset({"draftwood_state"})),
    "draftwood_length_bucket": Exposed(kind=Kind.HISTOGRAM, labels=frozenset()),
}


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(draftwood_tokens_total[1m]))",
        'sum by (draftwood_state) (draftwood_queue{draftwood_state!="x", instance=~"a"}) > 1',
        "histogram_quantile(0.9, sum by (le) (rate(draftwood_length_bucket[1m])))",
    ],
)
def test_sound_expressions_pass(expression: str) -> None:
    assert list(complaints(expression, SERIES)) == []


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("sum(rate(draftwood_token_total[1m]))", "no service exposes draftwood_token_total"),
        ("draftwood_tokens_total > 1", "draftwood_tokens_total only grows"),
        ('rate(draftwood_tokens_total{draftwood_state="x"}[1m])', "has no label draftwood_state"),
        ("sum by (draftwood_state) (rate(draftwood_tokens_total[1m]))", "grouped by draftwood_state"),
        ("histogram_quantile(0.9, rate(draftwood_length[1m]))", "no service exposes draftwood_length"),
        ("up == 0", "names no metric"),
    ],
)
def test_wrong_names_are_told(expression: str, complaint: str) -> None:
    assert any(complaint in text for text in complaints(expression, SERIES))
