"""Step plans on a GPU: from the plan to the paths without a wait for the host in between.

Where every row may be drawn from (plain rows and trees: all but prefill and replay), a step is padded to one of a few
sizes and replayed as a CUDA graph; others are launched one kernel after the other. Both are the same launches on the
same kind of buffers. Plain rows can be queued behind plain rows whose tokens only the device knows: two sets of
buffers take turns. What the device can't end, the host does from the logits, as on a CPU: drafts that are weighed
against the target, and in a group draws that truncate.
"""

from collections import deque
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.device_timer import DeviceTimer
from draftwood_kernels.placement import Placement
from draftwood_kernels.step_graphs import StepGraphs
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.device_walks import DeviceWalks
from draftwood_verifier.gpu.kept_features import KeptFeatures
from draftwood_verifier.gpu.rank_offers import RankOffers
from draftwood_verifier.gpu.step_inputs import StepInputs, accepts
from draftwood_verifier.gpu.step_size import StepSize, padded, size_of
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import Share
from draftwood_verifier.plan import CommitPlan, Path, StepPlan, Walk
from draftwood_verifier.runner import Paths, Runner, named
from draftwood_verifier.step_features import StepFeatures, ready

# Rows of the largest step that is a graph: trees of 16 nodes for 64 sessions, and some more.
_MOST_ROWS = 1536


def load_gpu_runner(
    target: FilePath,
    placement: Placement,
    *,
    pages: int,
    page_size: int,
    group: Group | None = None,
    rejection: bool = False,
) -> "GpuRunner":
    """The target checkpoint, or this rank's share of it, on a GPU. Raises the checkpoint's errors."""
    model = load_model(target, Share(group), placement=placement)
    # One page more than anybody is given: rows that are not accepted are written there.
    pool = KVPool(
        layers=model.config.num_hidden_layers,
        pages=pages + 1,
        page_size=page_size,
        row=model.cache_row,
        placement=placement,
    )
    return GpuRunner(model, pool, group, np.random.default_rng() if rejection else None)


class StepEnd(Protocol):
    """What becomes of a step's logits; the buffers of one size."""

    def queue(self, logits: torch.Tensor, inputs: StepInputs) -> None: ...
    def download(self) -> None: ...
    def settle(self) -> None: ...
    def paths(self, walks: list[Walk]) -> Paths: ...


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """Plain rows that are queued, or run."""

    plan: StepPlan
    size: StepSize
    end: DeviceWalks
    features: KeptFeatures
    timer: DeviceTimer


class GpuRunner(Runner):
    """Alone it is a `plan.AheadRunner` too. The pool's last page is its own.

    On a CPU, kernels run in Triton's interpreter and no graph is made.
    """

    def __init__(
        self,
        model: DecoderModel,
        pool: KVPool,
        group: Group | None = None,
        random: np.random.Generator | None = None,
    ) -> None:
        super().__init__(model, pool, group, random)
        self._spare_slot = pool.pages.shape[1] - 1
        self._graphs = StepGraphs(self._device)
        self._timers = DeviceTimer(self._device), DeviceTimer(self._device)
        self._timer = self._timers[0]  # of the step that was executed or collected last
        self._buffers: dict[tuple[int, StepSize], tuple[StepInputs, StepEnd]] = {}
        self._kept_features = self._feature_buffers()
        self._host_features: KeptFeatures | None = None
        self._launches: deque[_Launch] = deque()
        self._last: _Launch | None = None
        self._turn = 0
        self._committed: NDArray[np.bool_] = np.zeros(0, np.bool_)
        # Graphs hold on to where it is.
        pool.scratch(_MOST_ROWS)

    @property
    def device_s(self) -> float:
        return self._timer.seconds

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[Path]:
        assert not self._launches, "what was launched comes first"
        self._host_features = None
        size = size_of(plan)
        if any(walk.draft_row >= 0 for walk in plan.walks) or (size.truncates and self._sharded is not None):
            return super().execute(plan)
        self._timer.start()
        end = self._replay(plan, padded(size)) if _is_drawn_from(plan) else self._launch(plan, size)
        self._timer.stop()
        end.download()
        end.settle()
        return named(plan, end.paths(plan.walks) if plan.walks else [])

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self._turn = 1 - self._turn
        size = padded(size_of(plan))
        inputs, end = self._buffers_of(size, self._turn)
        features = self._kept_features[self._turn]
        assert isinstance(end, DeviceWalks), "in a group tokens are known to the host alone"
        timer = self._timers[self._turn]
        timer.start()
        inputs.fill(plan)
        if plan.drawn is not None:
            assert self._last is not None, "the rows are drawn by a step that was not launched"
            inputs.take_drawn(self._last.end.drawn)
        self._graphs.run((self._turn, size), lambda: self._step(inputs, end, features))
        timer.stop()
        features.download(len(plan.token_ids))
        end.download()
        self._last = _Launch(plan=plan, size=size, end=end, features=features, timer=timer)
        self._launches.append(self._last)

    @torch.inference_mode()
    def collect(self) -> list[Path]:
        done = self._launches.popleft()
        done.end.settle()
        self._host_features, self._rows, self._timer = done.features, done.size.rows, done.timer
        self._note_committed(done.plan)
        return named(done.plan, done.end.paths(done.plan.walks))

    @torch.inference_mode()
    def features(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        if self._host_features is None:
            return super().features(rows, layer_ids)
        return self._host_features.rows(rows, layer_ids)

    def features_later(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> StepFeatures:
        return ready(self.features(rows, layer_ids))  # the next step overwrites them

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits of plan.logit_rows on the host, float32 [K, v]."""
        self._host_features = None
        self._timer.start()
        inputs = self._inputs(size_of(plan))
        inputs.fill(plan)
        self._committed = np.zeros(len(plan.token_ids), np.bool_)
        logits = self._forward(inputs).float()
        self._timer.stop()
        return logits.cpu()

    @torch.inference_mode()
    def commit(self, plan: CommitPlan) -> None:
        """What the step has not committed itself: prefill, and all that the host decides."""
        self._move(plan, ~self._committed[plan.rows])

    def set_feature_layers(self, layer_ids: tuple[int, ...]) -> None:
        before = self._feature_layers
        super().set_feature_layers(layer_ids)
        if self._feature_layers == before:
            return
        self._kept_features = self._feature_buffers()
        self._graphs = StepGraphs(self._device)

    def _replay(self, plan: StepPlan, size: StepSize) -> StepEnd:
        """A step padded to one of the sizes that are captured."""
        inputs, end = self._buffers_of(size, 0)
        features = self._kept_features[0]
        inputs.fill(plan)
        self._graphs.run((0, size), lambda: self._step(inputs, end, features))
        self._features, self._rows = features.device, size.rows
        self._note_committed(plan)
        return end

    def _launch(self, plan: StepPlan, size: StepSize) -> StepEnd:
        inputs, end = self._inputs(size), self._end(size)
        inputs.fill(plan)
        self._step(inputs, end, None)
        self._note_committed(plan)
        return end

    def _step(self, inputs: StepInputs, end: StepEnd, features: KeptFeatures | None) -> None:
        logits = self._forward(inputs)
        if features is not None:
            features.keep(self._features)
        if inputs.size.walks:
            end.queue(logits, inputs)

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        output = self._model.forward(
            inputs["token_ids"],
            inputs["positions"],
            inputs["logit_rows"],
            inputs.layout,
            self._pool,
            self._feature_layers,
        )
        self._features, self._rows = output.features, inputs.size.rows
        return output.logits

    def _buffers_of(self, size: StepSize, turn: int) -> tuple[StepInputs, StepEnd]:
        if (turn, size) not in self._buffers:
            self._buffers[turn, size] = self._inputs(size), self._end(size)
        return self._buffers[turn, size]

    def _feature_buffers(self) -> tuple[KeptFeatures, KeptFeatures]:
        """One for each turn."""
        layer_ids, placement = self._feature_layers, self._pool.placement
        first, second = (KeptFeatures(layer_ids, _MOST_ROWS, self.hidden_size, placement) for _ in range(2))
        return first, second

    def _end(self, size: StepSize) -> StepEnd:
        if self._sharded is None:
            return DeviceWalks(size, self._pool, self._spare_slot)
        return RankOffers(size, self._sharded, int(self._model.vocabulary.start), self._device)

    def _note_committed(self, plan: StepPlan) -> None:
        kept = accepts(plan) if self._sharded is None else np.zeros(len(plan.prefix_lens), np.bool_)
        self._committed = np.repeat(kept, np.diff(plan.row_offsets))

    def _inputs(self, size: StepSize) -> StepInputs:
        if size.rows > self._pool.scratch_rows:
            # Scratch moves.
            self._graphs = StepGraphs(self._device)
        return StepInputs(size, self._pool.page_size, self._spare_slot, self._device)


def _is_drawn_from(plan: StepPlan) -> bool:
    """Whether every row is a logit row, and they fit a graph."""
    return 0 < len(plan.token_ids) == len(plan.logit_rows) and len(plan.token_ids) <= _MOST_ROWS
