"""Step plans on a GPU: forward, draws, walks and the accepted paths' KV without a wait for the host in between.

Where every row may be drawn from (plain rows and trees: all but prefill and replay), a step is padded to one of a few
sizes and replayed as a CUDA graph; others are launched one kernel after the other. Both are the same launches on the
same kind of buffers. In a group, or where drafts are weighed against the target, walks are the host's, as on a CPU.

Shapes: N rows, K logit rows, T walks, P places of a path.
"""

from pathlib import Path as FilePath

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.commit_kv import commit_kv
from draftwood_kernels.keep_bounds import KeepBounds, keep_bounds
from draftwood_kernels.placement import Placement
from draftwood_kernels.sample.kernel import sample_rows
from draftwood_kernels.step_graphs import StepGraphs
from draftwood_kernels.walk_tree.kernel import walk_sampled
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.step_inputs import StepInputs, accepts
from draftwood_verifier.gpu.step_outputs import StepOutputs
from draftwood_verifier.gpu.step_size import StepSize, padded, size_of
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.linear import Share
from draftwood_verifier.plan import CommitPlan, Path, StepPlan
from draftwood_verifier.runner import Runner

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


class GpuRunner(Runner):
    """The pool's last page is the runner's own. On a CPU, kernels run in Triton's interpreter and no graph is made."""

    def __init__(
        self,
        model: DecoderModel,
        pool: KVPool,
        group: Group | None = None,
        random: np.random.Generator | None = None,
    ) -> None:
        super().__init__(model, pool, group, random)
        self._walks_here = group is None
        self._spare_slot = pool.pages.shape[1] - 1
        self._graphs = StepGraphs(self._device)
        self._buffers: dict[StepSize, tuple[StepInputs, StepOutputs]] = {}
        self._kept_features: dict[int, torch.Tensor] = {}
        self._committed: NDArray[np.bool_] = np.zeros(0, np.bool_)
        # Graphs hold on to where it is.
        pool.scratch(_MOST_ROWS)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[Path]:
        if not self._walks_here or any(walk.draft_row >= 0 for walk in plan.walks):
            return super().execute(plan)
        size = size_of(plan)
        outputs = self._replay(plan, padded(size)) if _is_drawn_from(plan) else self._launch(plan, size)
        self._committed = np.repeat(accepts(plan), np.diff(plan.row_offsets))
        self._wait()
        return [
            Path(tokens=tokens, rows=[int(plan.logit_rows[walk.first_logit + node]) for node in nodes])
            for walk, (tokens, nodes) in zip(plan.walks, outputs.read(len(plan.walks)), strict=True)
        ]

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits of plan.logit_rows on the host, float32 [K, v]."""
        inputs = self._inputs(size_of(plan))
        inputs.fill(plan)
        self._committed = np.zeros(len(plan.token_ids), np.bool_)
        return self._forward(inputs).float().cpu()

    @torch.inference_mode()
    def commit(self, plan: CommitPlan) -> None:
        """What the step has not committed itself: prefill, and all that the host decides."""
        left = ~self._committed[plan.rows]
        super().commit(CommitPlan(rows=plan.rows[left], slots=plan.slots[left]))

    def set_feature_layers(self, layer_ids: tuple[int, ...]) -> None:
        super().set_feature_layers(layer_ids)
        placement = self._pool.placement
        self._kept_features = {
            layer: torch.zeros(_MOST_ROWS, self.hidden_size, device=placement.device, dtype=placement.dtype)
            for layer in self._feature_layers
        }
        self._graphs = StepGraphs(self._device)

    def _replay(self, plan: StepPlan, size: StepSize) -> StepOutputs:
        """A step padded to one of the sizes that are captured."""
        if size not in self._buffers:
            self._buffers[size] = self._inputs(size), StepOutputs(size, self._device)
        inputs, outputs = self._buffers[size]
        inputs.fill(plan)
        self._graphs.run(size, lambda: self._step(inputs, outputs, keeps_features=True))
        self._features, self._rows = self._kept_features, size.rows
        return outputs

    def _launch(self, plan: StepPlan, size: StepSize) -> StepOutputs:
        inputs, outputs = self._inputs(size), StepOutputs(size, self._device)
        inputs.fill(plan)
        self._step(inputs, outputs, keeps_features=False)
        return outputs

    def _step(self, inputs: StepInputs, outputs: StepOutputs, *, keeps_features: bool) -> None:
        """keeps_features: a graph's own memory is the next graph's too, so they are copied out of it."""
        logits = self._forward(inputs)
        if keeps_features:
            for layer, rows in self._features.items():
                self._kept_features[layer][: len(rows)].copy_(rows)
        if inputs.size.walks:
            sampled = sample_rows(
                logits, inputs["temperatures"], inputs["seeds"], inputs["draw_positions"], _bounds(logits, inputs)
            )
            walk_sampled(sampled, inputs.trees, inputs.size.places - 1, outputs.paths)
            self._commit_paths(inputs, outputs)
            outputs.download()

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

    def _commit_paths(self, inputs: StepInputs, outputs: StepOutputs) -> None:
        """How long paths are, only the device knows: all places are copied, those behind an end to the spare slot."""
        paths = outputs.paths
        places = torch.arange(inputs.size.places, device=self._device)
        taken = (places < paths.lengths[:, None]) & (inputs["live"][:, None] > 0)
        drawn = torch.where(taken, inputs["first_logits"][:, None] + paths.nodes, 0).flatten()
        rows = inputs["logit_rows"].index_select(0, drawn).long()
        slots = torch.where(taken.flatten(), inputs["slots"].index_select(0, drawn), self._spare_slot)
        commit_kv(self._pool.scratch(inputs.size.rows), self._pool.pages, rows, slots)

    def _inputs(self, size: StepSize) -> StepInputs:
        if size.rows > self._pool.scratch_rows:
            # Scratch moves.
            self._graphs = StepGraphs(self._device)
        return StepInputs(size, self._pool.page_size, self._spare_slot, self._device)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _is_drawn_from(plan: StepPlan) -> bool:
    """Whether every row is a logit row, and they fit a graph."""
    return 0 < len(plan.token_ids) == len(plan.logit_rows) and len(plan.token_ids) <= _MOST_ROWS


def _bounds(logits: torch.Tensor, inputs: StepInputs) -> KeepBounds | None:
    if not inputs.size.truncates:
        return None
    return keep_bounds(logits, inputs["temperatures"], inputs["top_ks"], inputs["top_ps"], inputs["min_ps"])
