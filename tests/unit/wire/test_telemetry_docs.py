"""docs/telemetry.md and the constants agree, both ways."""

import re
from pathlib import Path

from draftwood_wire import telemetry as names

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of the tables under a heading, without their heads; code marks are taken off."""
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(heading)]
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip().replace("`", "") for cell in line.split("|")] for line in lines]


def test_every_span_is_described() -> None:
    listed = [row[0] for row in rows("Spans")]
    assert len(set(listed)) == len(listed)
    assert set(names.SPAN_NAMES) == {name for name in listed if "<" not in name}


def test_every_attribute_is_described_with_its_unit() -> None:
    listed = {row[0]: row[1] for row in rows("Attributes")}
    assert listed == names.ATTRIBUTE_UNITS


def test_every_metric_is_described_with_kind_unit_labels_and_meaning() -> None:
    listed = {row[0]: (row[2], row[3], row[4], row[5]) for row in rows("Metrics")}
    defined = {m.name: (m.kind.value, m.unit, ", ".join(m.labels), m.text) for m in names.METRICS}
    assert listed == defined


def test_prometheus_names_are_those_of_the_exporter() -> None:
    for row in rows("Metrics"):
        name, prometheus, kind, unit = row[:4]
        base = name.replace(".", "_")
        suffix = {"s": "_seconds", "By": "_bytes"}.get(unit, "")
        suffix = "" if base.endswith(suffix) else suffix
        assert prometheus == base + suffix + ("_total" if kind == "counter" else "")


def test_the_volume_is_stated() -> None:
    assert f"never more than {names.SPANS_PER_SECOND} spans" in PAGE
