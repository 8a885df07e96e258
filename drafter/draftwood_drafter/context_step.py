"""Context on the device: features of committed positions become keys and values of all layers, in one launch each.

Shapes: N rows, P pieces of sessions, W pages of a table, F feature width, L layers, G KV heads, D head size. All of a
step's sizes are powers of two; what is behind the pieces is padding, which the device leaves out.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch

from draftwood_drafter.backend import ContextPiece
from draftwood_drafter.context_cache import ContextCache
from draftwood_drafter.model import DraftModel
from draftwood_kernels.append_context import ContextRows, append_context
from draftwood_kernels.packed_buffer import Field, PackedBuffer
from draftwood_kernels.rms_norm import rms_norm


@dataclass(frozen=True, kw_only=True)
class ContextSize:
    rows: int
    pieces: int
    pages: int


class ContextStep:
    """The step of one size: `fill`, `inputs.upload()`, then call it; calling it twice changes nothing."""

    def __init__(self, model: DraftModel, cache: ContextCache, size: ContextSize) -> None:
        self._model = model
        self._cache = cache
        placement = model.placement
        fields = {
            "row_offsets": Field(shape=(size.pieces + 1,), dtype=torch.int32),
            "lengths": Field(shape=(size.pieces,), dtype=torch.int32),
            "starts": Field(shape=(size.pieces,), dtype=torch.int32),
            "block_tables": Field(shape=(size.pieces, size.pages), dtype=torch.int32),
            "features": Field(shape=(size.rows, model.feature_width), dtype=placement.dtype),
        }
        self.inputs = PackedBuffer(fields, placement.device)
        # NumPy has no bfloat16.
        self._given = {name: array.numpy() for name, array in self.inputs.host.items() if name != "features"}

    def fill(self, pieces: list[ContextPiece]) -> None:
        """Write the host's side, once the last upload of it is done. Features are rounded to the model's type here."""
        self.inputs.settle()
        given, counts = self._given, [len(piece.features) for piece in pieces]
        ends = list(accumulate(counts))
        # Behind the pieces there are rooms without rows.
        given["row_offsets"][:] = ends[-1]
        given["row_offsets"][: len(pieces)] = [end - count for end, count in zip(ends, counts, strict=True)]
        given["lengths"][: len(pieces)] = counts
        given["starts"][: len(pieces)] = [piece.start for piece in pieces]
        for index, (piece, end) in enumerate(zip(pieces, ends, strict=True)):
            pages = self._cache.pages_of(piece.table, piece.start + counts[index])
            given["block_tables"][index, : len(pages)] = pages
            self.inputs.host["features"][end - counts[index] : end] = torch.from_numpy(piece.features)

    def __call__(self) -> None:
        c, weights, given = self._model.config, self._model.weights, self.inputs.device
        rows = ContextRows(
            row_offsets=given["row_offsets"],
            lengths=given["lengths"],
            starts=given["starts"],
            block_tables=given["block_tables"],
            page_size=self._cache.page_size,
        )
        fused = rms_norm(weights.fc(given["features"]), weights.hidden_norm, c.rms_norm_eps)
        projected = weights.context_kv(fused).view(-1, *self._cache.keys_values.shape[1:])
        phases = self._model.rotary.phase_table
        append_context(projected, weights.context_k_norm, c.rms_norm_eps, phases, rows, self._cache.keys_values)
