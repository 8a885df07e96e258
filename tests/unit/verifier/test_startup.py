"""What a start measures of a machine whose clock is ours: its true costs, whatever disturbs it for a while."""

from typing import Any

import numpy as np
import pytest

from draftwood_verifier.budget import startup
from draftwood_verifier.budget.cost_table import Axes, CostTable, batch_axis
from draftwood_verifier.plan import StepPlan

AXES = Axes(sequences=batch_axis(16))
ROOM: dict[str, Any] = {"pages": 512, "page_size": 16}


class Machine:
    """A runner whose steps take a linear time; `disturbed` of them ten times that."""

    vocab_size = 50
    context_limit = 4096

    def __init__(self, *, disturbed: range = range(0), factor: float = 1.0) -> None:
        self.now = 0.0
        self._steps = 0
        self._disturbed = disturbed
        self._factor = factor

    def execute(self, plan: StepPlan) -> None:
        sequences, rows = len(plan.prefix_lens), len(plan.token_ids)
        assert (plan.token_ids < self.vocab_size).all()
        assert (np.diff(plan.row_offsets) >= 1).all()
        assert all(table.max() < ROOM["pages"] for table in plan.block_tables)
        seconds = true_cost(sequences, rows - sequences, float(plan.prefix_lens.mean())) * self._factor
        self.now += seconds * (10 if self._steps in self._disturbed else 1)
        self._steps += 1


def true_cost(sequences: int, nodes: int, context: float) -> float:
    return 2e-3 + 3e-4 * sequences + 4e-5 * nodes + 1e-6 * context


def measured(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> CostTable:
    monkeypatch.setattr(startup.time, "perf_counter", lambda: machine.now)
    return startup.measure_costs(machine, axes=AXES, **ROOM)  # type: ignore[arg-type]


# One round over the grid is 24 steps and the first one warms up.
@pytest.mark.parametrize("disturbed", [range(0), range(25), range(20, 40), range(0, 60, 5)])
def test_the_table_is_the_machine(monkeypatch: pytest.MonkeyPatch, disturbed: range) -> None:
    table = measured(monkeypatch, Machine(disturbed=disturbed))
    for sequences in (1, 3, 16):
        for nodes in (0, 8, 20, 128):
            for context in (32, 500):
                assert table.cost(sequences, nodes, context) == pytest.approx(true_cost(sequences, nodes, context))


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.3, True), (2.0, False), (0.5, False)])
def test_kept_costs_are_believed_only_where_they_hold(
    monkeypatch: pytest.MonkeyPatch, factor: float, holds: bool
) -> None:
    table = measured(monkeypatch, Machine())
    machine = Machine(factor=factor)
    monkeypatch.setattr(startup.time, "perf_counter", lambda: machine.now)
    assert startup.still_true(table, machine, **ROOM) is holds  # type: ignore[arg-type]
