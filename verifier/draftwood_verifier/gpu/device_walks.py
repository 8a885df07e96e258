"""The end of a step whose device has whole rows: draws, walks, and the accepted paths' KV into the pages.

Shapes: K logit rows, V vocabulary, T walks, P places of a path, by the step's size.
"""

import torch

from draftwood_kernels.commit_kv import commit_kv
from draftwood_kernels.keep_bounds import KeepBounds, keep_bounds
from draftwood_kernels.packed_buffer import Field, PackedBuffer
from draftwood_kernels.sample.kernel import sample_rows
from draftwood_kernels.walk_tree.kernel import WalkedPaths, walk_sampled
from draftwood_verifier.cache.pool import KVPool
from draftwood_verifier.gpu.step_inputs import StepInputs
from draftwood_verifier.gpu.step_size import StepSize
from draftwood_verifier.plan import Walk
from draftwood_verifier.runner import Paths


class DeviceWalks:
    def __init__(self, size: StepSize, pool: KVPool, spare_slot: int) -> None:
        self._pool = pool
        self._spare_slot = spare_slot
        path = Field(shape=(size.walks, size.places), dtype=torch.int32)
        fields = {"nodes": path, "tokens": path, "lengths": Field(shape=(size.walks,), dtype=torch.int32)}
        self._buffer = PackedBuffer(fields, pool.placement.device)
        self._paths = WalkedPaths(**self._buffer.device)

    def queue(self, logits: torch.Tensor, inputs: StepInputs) -> None:
        """logits [K, V] of the rows that are in scratch now."""
        sampled = sample_rows(
            logits, inputs["temperatures"], inputs["seeds"], inputs["draw_positions"], _bounds(logits, inputs)
        )
        walk_sampled(sampled, inputs.trees, inputs.size.places - 1, self._paths)
        self._commit(inputs)

    @property
    def drawn(self) -> torch.Tensor:
        """[T] the first token of each walk, on the device."""
        return self._paths.tokens[:, 0]

    def download(self) -> None:
        """Queue the copy of the paths to the host."""
        self._buffer.download()

    def settle(self) -> None:
        """Wait until they are there, and with them all that was queued before."""
        self._buffer.settle()

    def paths(self, walks: list[Walk]) -> Paths:
        """Tokens and nodes of each walk, once the device is done."""
        tokens, nodes, lengths = (
            self._buffer.host[name][: len(walks)].tolist() for name in ("tokens", "nodes", "lengths")
        )
        return [(tokens[t][:length], nodes[t][:length]) for t, length in enumerate(lengths)]

    def _commit(self, inputs: StepInputs) -> None:
        """How long paths are, only the device knows: all places are copied, those behind an end to the spare slot."""
        places = torch.arange(inputs.size.places, device=self._paths.nodes.device)
        taken = places < self._paths.lengths[:, None]
        drawn = torch.where(taken, inputs["first_logits"][:, None] + self._paths.nodes, 0).flatten()
        rows = inputs["logit_rows"].index_select(0, drawn).long()
        slots = torch.where(taken.flatten(), inputs["slots"].index_select(0, drawn), self._spare_slot)
        commit_kv(self._pool.scratch(inputs.size.rows), self._pool.pages, rows, slots)


def _bounds(logits: torch.Tensor, inputs: StepInputs) -> KeepBounds | None:
    if not inputs.size.truncates:
        return None
    return keep_bounds(logits, inputs["temperatures"], inputs["top_ks"], inputs["top_ps"], inputs["min_ps"])
