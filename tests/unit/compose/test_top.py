"""What `draftwood top` makes of two looks, and how a line fits a terminal."""

import io

import pytest

from draftwood.load import DrafterRow, LoadFigures, LoadHistory, Look, figures_of
from draftwood.terminal import paint, wants_colour
from draftwood.top_view import Line, Span, load_lines, sparkline
from draftwood_wire.v1.verifier_service_pb2 import DrafterLoad, GetLoadResponse

FIRST = GetLoadResponse(
    steps=10,
    committed_tokens=40,
    first_tokens=4,
    rounds=16,
    speculative_rounds=12,
    proposed_nodes=60,
    accepted_nodes=20,
)
SECOND = GetLoadResponse(
    running_requests=3,
    waiting_requests=2,
    kv_pages_total=200,
    kv_pages_free=150,
    steps=20,
    committed_tokens=140,
    first_tokens=4,
    rounds=56,
    speculative_rounds=42,
    proposed_nodes=300,
    accepted_nodes=80,
    refused_proposals=1,
    last_step_nodes=30,
    last_step_requests=3,
    drafter_loads=[
        DrafterLoad(drafter_id="oak", sessions=3, node_limit=16),
        DrafterLoad(drafter_id="birch", late=True, node_limit=256),
    ],
)


def figures(second: GetLoadResponse = SECOND, first: GetLoadResponse | None = FIRST) -> LoadFigures:
    before = None if first is None else Look(load=first, at=100.0)
    return figures_of("host:1", "model", Look(load=second, at=102.0), before)


def text_of(lines: list[Line], width: int = 200, colour: bool = False) -> list[str]:
    return [paint(line, width=width, colour=colour) for line in lines]


def test_rates_are_over_the_time_between_two_looks() -> None:
    shown = figures()
    assert (shown.tokens_per_s, shown.rounds_per_s) == (50.0, 20.0)
    assert shown.tokens_per_round == (40 + 60) / 40
    assert (shown.acceptance, shown.speculative_share) == (60 / 240, 30 / 40)
    assert (shown.kv_pages_used, shown.kv_pages_total) == (50, 200)
    assert shown.drafters[1] == DrafterRow(drafter_id="birch", sessions=0, node_limit=256, late=True)


@pytest.mark.parametrize("first", [None, GetLoadResponse(steps=21, committed_tokens=999, rounds=999)])
def test_the_first_look_and_one_after_a_restart_have_no_rates(first: GetLoadResponse | None) -> None:
    shown = figures(first=first)
    assert [shown.tokens_per_s, shown.tokens_per_round, shown.acceptance, shown.speculative_share] == [None] * 4
    assert shown.committed_tokens == 140


def test_nothing_happened_is_zero_tokens_and_no_length() -> None:
    shown = figures(first=SECOND)
    assert (shown.tokens_per_s, shown.tokens_per_round) == (0.0, None)


def test_lines_say_it_all() -> None:
    history = LoadHistory()
    history.looks.extend([None, figures()])
    requests, tokens, length, nodes, pages, proposals, _, head, oak, birch = text_of(
        load_lines(figures(), history, 120)
    )
    assert requests.split() == ["requests", "3", "running", "2", "waiting", "0", "drafted"]
    assert tokens.split()[1:] == ["50.0", "█", "20.0", "rounds/s"]
    assert length.split()[1:4] == ["2.50", "█", "25%"]
    assert nodes.split()[1:4] == ["30", "█", "10.0"]
    assert pages.split()[2:] == ["25%", "▃", "50", "of", "200"]
    assert "1 refused" in proposals
    assert head.split() == ["drafters", "id", "sessions", "node", "limit", "state"]
    assert oak.split() == ["oak", "3", "16", "on", "time"]
    assert birch.split()[:4] == ["birch", "0", "256", "late:"]
    lonely = figures(GetLoadResponse(steps=1), None)
    assert text_of(load_lines(lonely, history, 80))[-1].split()[1] == "none"


def test_sparkline_scales_cuts_and_leaves_gaps() -> None:
    assert sparkline([0, None, 7], 5) == "  ▁ █"
    assert sparkline([9, 9, 0, 7], 2) == "▁█"
    assert sparkline([5, 10], 2, ceiling=20) == "▃▅"
    assert sparkline([0, 0], 3) == " ▁▁"
    assert sparkline([], 2) == "  "


@pytest.mark.parametrize("width", [0, 1, 5, 7, 40, 80])
def test_a_line_never_exceeds_the_width(width: int) -> None:
    line = [Span("hello", "bold"), Span(" wo"), Span("rld", "bad")]
    plain = paint(line, width=width, colour=False)
    assert plain == "hello world"[:width]
    coloured = paint(line, width=width, colour=True)
    for code in ("\x1b[1m", "\x1b[1;31m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain
    assert all(len(shown) <= width for shown in text_of(load_lines(figures(), LoadHistory(), width), width))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_only_on_a_terminal_and_unless_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
