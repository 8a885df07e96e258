"""What was measured, as text and as JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from draftwood_kernels.bench.measure import Card
from draftwood_kernels.bench.steps import StepRow


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """rivals: microseconds by name, none for what could not be captured."""

    name: str
    time_us: float
    bytes_moved: int
    bandwidth_share: float
    matrix_share: float
    rivals: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Report:
    environment: dict[str, str]
    card: Card
    kernels: list[KernelRow]
    steps: list[StepRow]

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    def text(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.environment.items()]
        lines += [
            f"copy bandwidth: {self.card.bandwidth / 1e9:.0f} GB/s read and written",
            f"matrix rate: {self.card.matrix_rate / 1e12:.0f} T operations/s in bfloat16",
            "",
            *_table(["kernel", "µs", "MB", "of bandwidth", "of matrix rate", "others, µs"], map(_kernel, self.kernels)),
            "",
            *_table(
                ["model", "batch", "context", "nodes", "step µs", "of plain", "of weights + KV", "kernels", "gaps µs"],
                (_step(row, _plain(row, self.steps)) for row in self.steps),
            ),
        ]
        return "\n".join(lines) + "\n"


def _kernel(row: KernelRow) -> list[str]:
    others = [f"{name} {'not capturable' if us is None else f'{us:.1f}'}" for name, us in row.rivals.items()]
    return [
        row.name,
        f"{row.time_us:.1f}",
        f"{row.bytes_moved / 1e6:.2f}",
        f"{row.bandwidth_share:.0%}",
        f"{row.matrix_share:.0%}" if row.matrix_share else "",
        ", ".join(others),
    ]


def _plain(row: StepRow, rows: list[StepRow]) -> StepRow | None:
    same = (row.model, row.batch, row.context, 0)
    return next((each for each in rows if (each.model, each.batch, each.context, each.nodes) == same), None)


def _step(row: StepRow, plain: StepRow | None) -> list[str]:
    which = [row.model, str(row.batch), str(row.context), str(row.nodes)]
    if row.time_us is None or row.floor_us is None or row.idle_us is None:
        return [*which, "does not fit into memory", "", "", "", ""]
    of_plain = f"{row.time_us / plain.time_us:.2f}" if plain and plain.time_us else ""
    floor = f"{row.time_us / row.floor_us:.2f}"
    return [*which, f"{row.time_us:.0f}", of_plain, floor, str(row.kernels), f"{row.idle_us:.0f}"]


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    cells = [head, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
