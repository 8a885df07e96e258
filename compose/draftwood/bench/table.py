"""A run's summary as text."""

from draftwood.bench.modes import PLAIN
from draftwood.bench.summary import LoadSummary, ModeFigures

_HEADINGS = (
    f"{'load':>6} {'mode':8}{'tokens/s':>9}{'x plain':>9}{'TTFT p50':>10}{'p95':>7}{'ITL p50':>9}{'p95':>7}{'p99':>7}"
    f"{'tokens':>8}{'plain':>7}"
)
_UNITS = f"{'':6} {'':8}{'':9}{'':9}{'ms':>10}{'ms':>7}{'ms':>9}{'ms':>7}{'ms':>7}{'a round':>8}{'steps':>7}"


def print_table(summaries: list[LoadSummary]) -> None:
    print(f"{_HEADINGS}\n{_UNITS}")
    for summary in summaries:
        for name, figures in summary.modes.items():
            print(f"{summary.load:6g} {name:8}{_line(figures)}")
    _print_verdicts(summaries)


def _line(f: ModeFigures) -> str:
    first = f"{_ms(f.ttft_p50_s):>10}{_ms(f.ttft_p95_s):>7}"
    between = f"{_ms(f.itl_p50_s, 1):>9}{_ms(f.itl_p95_s, 1):>7}{_ms(f.itl_p99_s, 1):>7}"
    share = "-" if f.plain_steps is None else f"{f.plain_steps:.0%}"
    refused = f"  {f.refused} refused" if f.refused else ""
    speed = f"{f.tokens_per_s:9.1f}{_number(f.against_plain):>9}"
    return f"{speed}{first}{between}{_number(f.accepted_length):>8}{share:>7}{refused}"


def _print_verdicts(summaries: list[LoadSummary]) -> None:
    for summary in summaries:
        verdict = summary.verdict
        if verdict is None:
            continue
        pairs = len(summary.modes[PLAIN].pairs_tokens_per_s)
        print(
            f"load {summary.load:g}: auto at {verdict.against_best:.3f} of {verdict.best_fixed}, the best fixed mode "
            f"(regret {verdict.regret:.1%}), {_number(verdict.against_best_elsewhere, 3)} of what is best by the other "
            f"pairs{_between(verdict.elsewhere_interval)}; ahead of plain in {verdict.wins} of {pairs} pairs, "
            f"p = {verdict.slower_p:.2f} that so few are luck"
        )


def _between(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" (95 % sure between {interval[0]:.3f} and {interval[1]:.3f})"


def _ms(seconds: float | None, digits: int = 0) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.{digits}f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
