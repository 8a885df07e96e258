"""Executes step plans on one device: forward, sampling, walks, commit. In a group, with a share of the model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path as FilePath

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.commit_kv import commit_kv
from draftwood_kernels.tree_attention import AttentionLayout, build_layout
from draftwood_kernels.walk_tree import TreeWalk, walk_trees
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.model.decoder import DecoderModel
from draftwood_verifier.model.loading import load_model
from draftwood_verifier.parallel.draft_trees import DraftTreeBuilder
from draftwood_verifier.parallel.groups import Alone, Group
from draftwood_verifier.parallel.linear import Share
from draftwood_verifier.parallel.rejection import DrawnWalk, RejectionSampler
from draftwood_verifier.parallel.sampling import ShardedSampler
from draftwood_verifier.plan import CommitPlan, DraftPlan, Path, StepPlan, Walk
from draftwood_verifier.step_features import StepFeatures, ready
from draftwood_wire.tree import TokenTree

# For each walk the drawn tokens and the nodes they were drawn at.
Paths = list[tuple[list[int], list[int]]]
# Of the logits of this rank's tokens [K, v].
Walker = Callable[[torch.Tensor, list[TreeWalk]], Paths]


def load_runner(
    target: FilePath, *, pages: int, page_size: int, group: Group | None = None, rejection: bool = False
) -> "Runner":
    """The target checkpoint, or this rank's share of it, with `pages` KV pages. Raises the checkpoint's errors."""
    model = load_model(target, Share(group))
    pool = KVPool(layers=model.config.num_hidden_layers, pages=pages, page_size=page_size, row=model.cache_row)
    return Runner(model, pool, group, np.random.default_rng() if rejection else None)


class Runner:
    """Implements `plan.Runner`; on a rank other than 0, `execute` computes, and its paths hold no token.

    So does `build_trees`, and has no trees there. With `random`, trees of sampled requests are drawn and weighed
    against the target by rejection sampling.
    """

    def __init__(
        self,
        model: DecoderModel,
        pool: KVPool,
        group: Group | None = None,
        random: np.random.Generator | None = None,
    ) -> None:
        config = model.config
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.layers = config.num_hidden_layers
        self.context_limit = config.max_position_embeddings
        self.eos_token_ids = config.eos_token_ids
        self._model = model
        self._pool = pool
        self._sharded = None if group is None else ShardedSampler(group, model.vocabulary, config.vocab_size)
        self._walk: Walker = walk_trees if self._sharded is None else self._sharded.walk
        self._drafts = DraftTreeBuilder(model.vocabulary, config.vocab_size, group, random)
        self._rejection = None if random is None else RejectionSampler(group or Alone(), model.vocabulary, random)
        self._device = pool.placement.device
        self._feature_layers: tuple[int, ...] = ()
        self._features: dict[int, torch.Tensor] = {}
        self._rows = 0
        # Where the step's rows are already; -1: in scratch alone.
        self._slots: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def device_s(self) -> float:
        return 0.0

    def set_feature_layers(self, layer_ids: tuple[int, ...]) -> None:
        """Raises ValueError for a layer that the model does not have."""
        for layer in layer_ids:
            if not 0 <= layer < self.layers:
                raise ValueError(f"feature layer {layer}: the model has layers 0..{self.layers - 1}")
        self._feature_layers = tuple(sorted(set(layer_ids)))

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[Path]:
        logits = self.forward(plan)
        return named(plan, self._taken(logits, plan.walks))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits of plan.logit_rows, float32 [K, v]; features and scratch keep the step's rows."""
        layout = self._layout(plan)
        output = self._model.forward(
            torch.from_numpy(plan.token_ids),
            torch.from_numpy(plan.positions),
            torch.from_numpy(plan.logit_rows),
            layout,
            self._pool,
            self._feature_layers,
        )
        self._features, self._rows, self._slots = output.features, len(plan.token_ids), layout.slots
        return output.logits

    @torch.inference_mode()
    def commit(self, plan: CommitPlan) -> None:
        # A plain row's keys are where they belong, and so are those of the first nodes in a row.
        self._move(plan, self._slots[plan.rows] != plan.slots)

    @torch.inference_mode()
    def build_trees(self, plan: DraftPlan) -> list[TokenTree | None]:
        hidden = self._pool.placement.place(torch.from_numpy(plan.hidden_states))
        return self._drafts.build(self._model.draft_logits(hidden).float().cpu(), plan.wishes)

    @torch.inference_mode()
    def features(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        """[rows, len(layer_ids) * hidden] of the last execute. Raises KeyError for a layer it did not keep."""
        return _chosen([self._features[layer] for layer in layer_ids], rows)

    def features_later(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> StepFeatures:
        """The same, to be read at any time."""
        if len(rows) < self._rows:  # the others would stay in memory with them
            return ready(self.features(rows, layer_ids))
        kept = [self._features[layer] for layer in layer_ids]
        return StepFeatures(partial(_chosen, kept, rows), row_bytes=4 * self.hidden_size * len(kept))

    def _move(self, plan: CommitPlan, chosen: NDArray[np.bool_]) -> None:
        """KV of the chosen rows goes from scratch to its slots."""
        if chosen.any():
            rows, slots = (
                torch.from_numpy(array[chosen].astype(np.int64)).to(self._device) for array in (plan.rows, plan.slots)
            )
            commit_kv(self._pool.scratch(self._rows), self._pool.pages, rows, slots)

    def _taken(self, logits: torch.Tensor, walks: list[Walk]) -> Paths:
        drawn = [walk for walk in walks if walk.draft_row >= 0]
        if not drawn:
            return self._walk(logits, [tree_walk(walk) for walk in walks])
        assert self._rejection is not None, "a walk weighs against drafts, and none are kept"
        weighed = iter(
            self._rejection.walk(
                logits,
                self._drafts.laws,
                [DrawnWalk(tree=tree_walk(walk), draft_row=walk.draft_row) for walk in drawn],
            )
        )
        others = iter(self._walk(logits, [tree_walk(walk) for walk in walks if walk.draft_row < 0]))
        return [next(weighed if walk.draft_row >= 0 else others) for walk in walks]

    def _layout(self, plan: StepPlan) -> AttentionLayout:
        # A segment sampled from its first row is at the end of its session, so nothing is committed behind its prefix;
        # a chunk may be a replay, with committed rows behind it.
        extends = np.zeros(len(plan.prefix_lens), np.bool_)
        for walk in plan.walks:
            extends[walk.segment] = walk.root_row == plan.row_offsets[walk.segment]
        return build_layout(
            row_offsets=plan.row_offsets,
            prefix_lens=plan.prefix_lens,
            block_tables=plan.block_tables,
            parents=plan.parents,
            extends=extends,
            page_size=self._pool.page_size,
        )


@torch.inference_mode()
def _chosen(layers: list[torch.Tensor], rows: NDArray[np.int32]) -> NDArray[np.float32]:
    """[rows, layers * hidden]."""
    device = layers[0].device
    if device.type == "cpu":  # NumPy takes half as long as torch over so little
        return np.concatenate([layer.float().numpy().take(rows, axis=0) for layer in layers], axis=1)
    index = torch.from_numpy(rows).to(device)
    array: NDArray[np.float32] = torch.cat([layer.index_select(0, index) for layer in layers], 1).float().cpu().numpy()
    return array


def named(plan: StepPlan, paths: Paths) -> list[Path]:
    """The plan's walks with the absolute rows of their nodes."""
    return [
        Path(tokens=tokens, rows=[int(plan.logit_rows[walk.first_logit + node]) for node in nodes])
        for walk, (tokens, nodes) in zip(plan.walks, paths, strict=True)
    ]


def tree_walk(walk: Walk) -> TreeWalk:
    """As `draftwood_kernels.walk_tree` knows it."""
    return TreeWalk(
        first_row=walk.first_logit,
        token_ids=walk.tree.token_ids,
        parents=walk.tree.parents,
        position=walk.position,
        sampling=walk.sampling,
    )
