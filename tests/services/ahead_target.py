"""The fake target as a device with a queue: plain rows are computed in the order of their launches, and read later."""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from draftwood_verifier.plan import Path, StepPlan
from tests.services.fake_target import FakeTarget


class AheadTarget(FakeTarget):
    """Implements `plan.AheadRunner`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.behind = 0  # launches whose tokens only the device knew
        self._queue: deque[tuple[StepPlan, tuple[int, ...], list[Path]]] = deque()
        self._last: list[Path] = []

    def execute(self, plan: StepPlan) -> list[Path]:
        assert not self._queue, "a step that is read at once was queued behind others"
        assert plan.drawn is None
        return super().execute(plan)

    def launch(self, plan: StepPlan) -> None:
        assert len(plan.token_ids) == len(plan.walks), "rows that are not plain"
        assert len(self._queue) <= 1, "more than one step is queued behind the one that runs"
        if plan.drawn is not None:
            assert len(self._queue) == 1, "the walks that draw the rows were read before"
            self.behind += 1
            drawn = [self._last[walk].tokens[0] for walk in plan.drawn]
            plan = replace(plan, token_ids=np.array(drawn, np.int32), drawn=None)
        collected = self._plan, self._layers
        self._last = super().execute(plan)
        self._plan, self._layers = collected
        self._keep(plan)
        self._queue.append((plan, self._next_layers, self._last))

    def collect(self) -> list[Path]:
        self._plan, self._layers, paths = self._queue.popleft()
        return paths

    def _keep(self, plan: StepPlan) -> None:
        """As the device does: a plain row's KV is in the pages as soon as it is computed."""
        for row, table in enumerate(plan.block_tables):
            page, offset = divmod(int(plan.positions[row]), self._page_size)
            self._pages[table[page] * self._page_size + offset] = plan.token_ids[row]
