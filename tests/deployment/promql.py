"""What Prometheus expressions name, against what the services expose."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LIST = Path(__file__).with_name("exposed_metrics.txt")
_METRIC = re.compile(r"\b(?:draftwood|gen_ai)_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b((?:draftwood|gen_ai)_[a-z0-9_]+)\{([^}]*)\}")
_MATCHER = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_BRACES = re.compile(r"\{[^}]*\}")
_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
# Added by Prometheus to everything it scrapes, or part of a histogram.
SCRAPED_LABELS = frozenset({"instance", "job", "le"})


@dataclass(frozen=True, kw_only=True)
class Exposed:
    kind: str
    labels: frozenset[str]


def exposed_series() -> dict[str, Exposed]:
    """Every series name that a scrape can bring."""
    series: dict[str, Exposed] = {}
    for line in _LIST.read_text().splitlines():
        if line.startswith("#"):
            continue
        kind, name, *labels = line.split()
        names = [name + part for part in ("_bucket", "_sum", "_count")] if kind == "histogram" else [name]
        series.update({name: Exposed(kind=kind, labels=frozenset(labels)) for name in names})
    return series


def complaints(expression: str, series: dict[str, Exposed]) -> Iterator[str]:
    """What is wrong with the names of an expression: unknown metrics and labels, counters read as values."""
    labels_named = {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")}
    # Labels look like metrics where they are matched or grouped by.
    metrics = _METRIC.findall(_GROUPING.sub("", _BRACES.sub("", expression)))
    known = [series[name] for name in metrics if name in series]
    for name in metrics:
        if name not in series:
            yield f"no service exposes {name}"
        elif series[name].kind != "gauge" and not re.search(rf"\brate\({name}\b", expression):
            yield f"{name} only grows: it needs a rate"
    for name, matchers in _SELECTOR.findall(expression):
        allowed = SCRAPED_LABELS | (series[name].labels if name in series else frozenset())
        for label in set(_MATCHER.findall(matchers)) - allowed:
            yield f"{name} has no label {label}"
    for label in labels_named - SCRAPED_LABELS - {label for entry in known for label in entry.labels}:
        yield f"grouped by {label}, which no metric of the expression has"
    if not metrics:
        yield "names no metric"
