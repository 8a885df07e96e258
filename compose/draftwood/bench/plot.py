"""A run's summary as a picture. The only module that imports matplotlib."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from draftwood.bench.modes import AUTO, PLAIN
from draftwood.bench.summary import LoadSummary

_STYLES = {AUTO: {"color": "black", "linewidth": 2.5, "zorder": 3}, PLAIN: {"color": "tab:gray", "linewidth": 2.0}}


def save_plot(path: Path, summaries: list[LoadSummary], *, loads: str, caption: str) -> None:
    """Speed, and speed against plain, over the load; `loads` names the axis."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    x = [summary.load for summary in summaries]
    for name in summaries[0].modes:
        figures = [summary.modes[name] for summary in summaries]
        style = _STYLES.get(name, {})
        left.plot(x, [f.tokens_per_s for f in figures], marker="o", label=name, **style)
        if all(f.against_plain is not None for f in figures):
            right.plot(x, [f.against_plain for f in figures], marker="o", label=name, **style)
    _label(left, x, loads, "tokens a second (median of the pairs)")
    _label(right, x, loads, "against plain (median of the pairs' ratios)")
    right.axhline(1.0, color="tab:gray", linewidth=1, linestyle=":")
    left.set_ylim(bottom=0)
    left.legend()
    figure.suptitle(caption, fontsize=9)
    figure.savefig(path, dpi=130)


def _label(axes: Axes, x: list[float], loads: str, quantity: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.set_xlabel(loads)
    axes.set_ylabel(quantity)
    axes.grid(visible=True, alpha=0.3)
