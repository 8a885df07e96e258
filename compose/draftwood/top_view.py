"""The lines of `draftwood top`: figures in, styled text out; knows no terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.load import DrafterRow, LoadFigures, LoadHistory

_BLOCKS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 15
_VALUE_WIDTH = 9
_NOTE_WIDTH = 44


@dataclass(frozen=True, slots=True)
class Span:
    """`style` is one of "", "bold", "dim", "good", "warn", "bad"."""

    text: str
    style: str = ""


Line = list[Span]


def load_lines(figures: LoadFigures, history: LoadHistory, width: int) -> list[Line]:
    """What a reachable verifier does, in at most `width` columns of sparkline and text."""
    return [
        _requests(figures),
        _row("tokens/s", _number(figures.tokens_per_s), history.values("tokens_per_s"), width, _rounds(figures)),
        _row("tokens/round", _number(figures.tokens_per_round, 2), history.values("tokens_per_round"), width,
             _acceptance(figures)),
        _row("nodes/step", str(figures.last_step_nodes), history.values("last_step_nodes"), width, _budget(figures)),
        _row("KV pages", _percent(figures.kv_pages_used, figures.kv_pages_total), history.values("kv_pages_used"),
             width, f"{figures.kv_pages_used} of {figures.kv_pages_total}", ceiling=figures.kv_pages_total),
        _proposals(figures),
        [],
        *_drafters(figures.drafters),
    ]  # fmt: skip


def title_line(verifier: str, model: str, clock: str, interval_s: float) -> Line:
    shown = [Span("draftwood top", "bold"), Span(f"  {verifier}")]
    if model:
        shown.append(Span(f"  {model}"))
    return [*shown, Span(f"  {clock}, every {interval_s:g} s, q ends", "dim")]


def trouble_lines(verifier: str, reason: str, interval_s: float) -> list[Line]:
    said = Span(f"The verifier at {verifier} does not answer", "bad")
    return [[said, Span(f"; trying again every {interval_s:g} s.")], [Span(reason, "dim")]]


def sparkline(values: Sequence[float | None], width: int, ceiling: float | None = None) -> str:
    """The last `width` values as blocks; gaps are blanks. Without `ceiling` the highest value is the top."""
    shown = list(values)[-width:] if width > 0 else []
    top = ceiling or max((value for value in shown if value is not None), default=0.0) or 1.0
    blocks = [
        " " if value is None else _BLOCKS[min(round(value / top * (len(_BLOCKS) - 1)), len(_BLOCKS) - 1)]
        for value in shown
    ]
    return "".join(blocks).rjust(width)


def _requests(figures: LoadFigures) -> Line:
    waiting = Span(f"{figures.waiting_requests} waiting", "warn" if figures.waiting_requests else "")
    running = Span(f"{figures.running_requests} running", "bold")
    return [_label("requests"), running, Span("   "), waiting, Span(f"   {figures.drafted_sessions} drafted")]


def _row(
    label: str, value: str, values: Sequence[float | None], width: int, note: str, ceiling: float | None = None
) -> Line:
    # A narrow terminal cuts the note off, not the chart.
    room = max(8, min(60, width - _LABEL_WIDTH - _VALUE_WIDTH - _NOTE_WIDTH))
    chart = Span(sparkline(values, room, ceiling), "good")
    return [_label(label), Span(value.rjust(_VALUE_WIDTH - 2), "bold"), Span("  "), chart, Span(f"  {note}", "dim")]


def _rounds(figures: LoadFigures) -> str:
    return f"{_number(figures.rounds_per_s)} rounds/s"


def _acceptance(figures: LoadFigures) -> str:
    if figures.tokens_per_round is None:
        return "no rounds"
    accepted = "no nodes" if figures.acceptance is None else f"{figures.acceptance:.0%} of nodes accepted"
    return f"{accepted}, {figures.speculative_share or 0:.0%} speculative"


def _budget(figures: LoadFigures) -> str:
    if not figures.last_step_requests:
        return "no step yet"
    each = figures.last_step_nodes / figures.last_step_requests
    return f"{each:.1f} a request in the last step" if figures.last_step_nodes else "the last step was plain"


def _proposals(figures: LoadFigures) -> Line:
    refused = Span(f"{figures.refused_proposals} refused", "bad" if figures.refused_proposals else "")
    others = f"{figures.rerooted_proposals} re-rooted   {figures.stale_proposals} stale   "
    return [_label("proposals"), Span(others), refused, Span("   since the start", "dim")]


def _drafters(rows: Sequence[DrafterRow]) -> list[Line]:
    if not rows:
        return [[_label("drafters"), Span("none connected: all requests decode plainly", "warn")]]
    name_width = max(len("id"), *(len(row.drafter_id) for row in rows))
    head = [_label("drafters"), Span(f"{'id'.ljust(name_width)}  sessions  node limit  state", "dim")]
    return [head, *(_drafter(row, name_width) for row in rows)]


def _drafter(row: DrafterRow, name_width: int) -> Line:
    state = Span("late: not waited for", "bad") if row.late else Span("on time", "good")
    text = f"{row.drafter_id.ljust(name_width)}  {row.sessions:>8}  {row.node_limit:>10}  "
    return [_label(""), Span(text), state]


def _label(text: str) -> Span:
    return Span(text.ljust(_LABEL_WIDTH), "dim")


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
