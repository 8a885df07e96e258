"""What Prometheus expressions name, against what the services expose."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from draftwood_wire.telemetry import METRICS, Kind, Metric

_PARTS = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.COUNTER: ("_total",), Kind.GAUGE: ("",)}
_UNIT_SUFFIXES = {"s": "_seconds", "By": "_bytes"}
_METRIC = re.compile(r"\b(?:draftwood|gen_ai)_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b((?:draftwood|gen_ai)_[a-z0-9_]+)\{([^}]*)\}")
_MATCHER = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_BRACES = re.compile(r"\{[^}]*\}")
_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
# Added by Prometheus to everything it scrapes, or part of a histogram.
SCRAPED_LABELS = frozenset({"instance", "job", "le"})


@dataclass(frozen=True, kw_only=True)
class Exposed:
    kind: Kind
    labels: frozenset[str]


def exposed_series() -> dict[str, Exposed]:
    """Every series name that a scrape can bring."""
    series: dict[str, Exposed] = {}
    for metric in METRICS:
        labels = frozenset(label.replace(".", "_") for label in metric.labels)
        exposed = Exposed(kind=metric.kind, labels=labels)
        series.update({_family(metric) + part: exposed for part in _PARTS[metric.kind]})
    return series


def _family(metric: Metric) -> str:
    """The name in Prometheus' form, with its unit."""
    name, suffix = metric.name.replace(".", "_"), _UNIT_SUFFIXES.get(metric.unit, "")
    return name if name.endswith(suffix) else name + suffix


def complaints(expression: str, series: dict[str, Exposed]) -> Iterator[str]:
    """What is wrong with the names of an expression: unknown metrics and labels, counters read as values."""
    labels_named = {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")}
    # Labels look like metrics where they are matched or grouped by.
    metrics = _METRIC.findall(_GROUPING.sub("", _BRACES.sub("", expression)))
    known = [series[name] for name in metrics if name in series]
    for name in metrics:
        if name not in series:
            yield f"no service exposes {name}"
        elif series[name].kind is not Kind.GAUGE and not re.search(rf"\brate\({name}\b", expression):
            yield f"{name} only grows: it needs a rate"
    for name, matchers in _SELECTOR.findall(expression):
        allowed = SCRAPED_LABELS | (series[name].labels if name in series else frozenset())
        for label in set(_MATCHER.findall(matchers)) - allowed:
            yield f"{name} has no label {label}"
    for label in labels_named - SCRAPED_LABELS - {label for entry in known for label in entry.labels}:
        yield f"grouped by {label}, which no metric of the expression has"
    if not metrics:
        yield "names no metric"
