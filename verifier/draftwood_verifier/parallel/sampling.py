"""Walks over logits of which every rank has its own tokens: no rank ever sees a whole row.

Noise is keyed by token, so a rank draws its own tokens' noise and offers its best; one small gather brings all offers
to rank 0, which walks. All rows of a tree are drawn at once: a walk that asked row by row would gather once a depth,
twice with the answer. The tokens are those that `draftwood_kernels.walk_tree` draws from the whole rows.

Shapes: K logit rows, V vocabulary, v tokens of this rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams, gumbel, gumbel_at, keep_set
from draftwood_kernels.walk_tree import TreeWalk, follow
from draftwood_verifier.parallel.groups import Group
from draftwood_verifier.parallel.keep import WideRow, truncate

# Of a row with a top_k up to this, every rank offers its top_k best: one gather, where searching the cut takes four.
NARROW = 128
# Wide rows that are truncated at once: the keys and weights of more would need more memory than they save messages.
_WIDE_ROWS = 64
_NOTHING = -np.inf

Paths = list[tuple[list[int], list[int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    index: int  # of the logit row
    position: int
    sampling: SamplingParams

    @property
    def narrow(self) -> bool:
        return 0 < self.sampling.top_k <= NARROW and not self.sampling.is_greedy

    @property
    def wide(self) -> bool:
        return self.sampling.truncates and not self.narrow and not self.sampling.is_greedy

    @property
    def offers(self) -> int:
        """Tokens that every rank puts forward."""
        return self.sampling.top_k if self.narrow else 1


class ShardedSampler:
    """Draws from rows of which this rank has the logits of the tokens of `vocabulary`, of `vocab_size` in all."""

    def __init__(self, group: Group, vocabulary: slice, vocab_size: int) -> None:
        self._group = group
        self._first = int(vocabulary.start)
        self._vocab_size = vocab_size

    def walk(self, logits: torch.Tensor, walks: list[TreeWalk]) -> Paths:
        """logits float32 [K, v] -> on rank 0 what `walk_trees` gives for [K, V]; elsewhere paths without a token."""
        rows = list(_rows(walks))
        return self._decided(walks, rows, self._offers(logits, rows) if rows else np.zeros((0, 2)))

    def walk_offered(self, walks: list[TreeWalk], scores: NDArray[np.float32], ids: NDArray[np.int32]) -> Paths:
        """`walk`, for walks that truncate nothing, from the best token of every row among this rank's: its score and
        its id, both [K]."""
        rows = list(_rows(walks))
        index = [row.index for row in rows]
        return self._decided(walks, rows, np.stack([scores[index], ids[index]], axis=1, dtype=np.float64))

    def _decided(self, walks: list[TreeWalk], rows: list[_Row], offers: NDArray[np.float64]) -> Paths:
        """offers [sum of offers, 2] of this rank."""
        offered = self._group.gather(offers) if rows else offers[np.newaxis]
        return self._follow(walks, rows, offered) if self._group.leads else [([], []) for _ in walks]

    def _offers(self, logits: torch.Tensor, rows: list[_Row]) -> NDArray[np.float64]:
        """(score, token id) of this rank's best tokens, [sum of offers, 2]."""
        whole: NDArray[np.float32] = logits.numpy()
        kept = self._truncated(whole, [row for row in rows if row.wide])
        offers = np.full((sum(row.offers for row in rows), 2), (_NOTHING, self._first))
        end = 0
        for row in rows:
            start, end = end, end + row.offers
            scores, ids = self._best(whole[row.index], row, kept.get(row.index))
            offers[start : start + len(ids), 0] = scores
            offers[start : start + len(ids), 1] = ids + self._first
        return offers

    def _best(
        self, logits: NDArray[np.float32], row: _Row, kept: NDArray[np.intp] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Scores and local ids of a row's offers, as many as there are."""
        if row.sampling.is_greedy:
            return _highest(logits)
        scaled = logits / np.float32(row.sampling.temperature)
        if row.narrow:
            return _heaviest(scaled, row.sampling.top_k)
        seed, position = row.sampling.seed, row.position
        if kept is None:
            return _highest(scaled + gumbel(seed, position, len(scaled), self._first))
        scores, winner = _highest(scaled[kept] + gumbel_at(seed, position, kept + self._first, self._vocab_size))
        return scores, kept[winner]

    def _truncated(self, whole: NDArray[np.float32], rows: list[_Row]) -> dict[int, NDArray[np.intp]]:
        """Row index -> the local ids that top-k, top-p and min-p leave of it."""
        kept: dict[int, NDArray[np.intp]] = {}
        for start in range(0, len(rows), _WIDE_ROWS):
            block = rows[start : start + _WIDE_ROWS]
            scaled = [_numbers(whole[row.index] / np.float32(row.sampling.temperature)) for row in block]
            best = self._group.gather(np.array([part.max() for part in scaled], np.float64)).max(axis=0)
            parts = [
                WideRow(part, np.float32(top), row.sampling) for part, top, row in zip(scaled, best, block, strict=True)
            ]
            truncate(parts, self._group)
            kept |= {row.index: np.flatnonzero(part.kept) for row, part in zip(block, parts, strict=True)}
        return kept

    def _follow(self, walks: list[TreeWalk], rows: list[_Row], offered: NDArray[np.float64]) -> Paths:
        """offered [ranks, sum of offers, 2]."""
        ends = np.cumsum([row.offers for row in rows]).tolist()
        of_row = {row.index: (row, offered[:, end - row.offers : end]) for row, end in zip(rows, ends, strict=True)}

        def path(walk: TreeWalk) -> tuple[list[int], list[int]]:
            return follow(walk, lambda node, _: self._decide(*of_row[walk.first_row + node]))

        return [path(walk) for walk in walks]

    def _decide(self, row: _Row, offered: NDArray[np.float64]) -> int:
        """The token of one row, from [ranks, offers, 2]; the ranks' ids ascend, so ties go to the lower one."""
        if not row.narrow:
            return int(offered[offered[:, 0, 0].argmax(), 0, 1])
        flat = offered.reshape(-1, 2)
        flat = flat[flat[:, 0] > _NOTHING]
        if not len(flat):
            return 0
        flat = flat[flat[:, 1].argsort()]
        scaled, ids = flat[:, 0].astype(np.float32), flat[:, 1].astype(np.intp)
        kept = keep_set(scaled, row.sampling)
        noise = gumbel_at(row.sampling.seed, row.position, ids[kept], self._vocab_size)
        return int(ids[kept[(scaled[kept] + noise).argmax()]])


def _rows(walks: list[TreeWalk]) -> Iterator[_Row]:
    """Every node of every tree, the root first."""
    for walk in walks:
        depths = [0]
        for parent in walk.parents.tolist():
            depths.append(depths[parent] + 1)
        for node, depth in enumerate(depths):
            yield _Row(index=walk.first_row + node, position=walk.position + depth, sampling=walk.sampling)


def _highest(scores: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """The highest score and its place, the first among equals, as arrays [1]; nothing of nothing."""
    place = np.array([scores.argmax()] if len(scores) else [], np.intp)
    return scores[place], place


def _heaviest(scaled: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """The `count` highest and their places; among equals the first ones."""
    scaled = _numbers(scaled)
    threshold = np.partition(scaled, -count)[-count] if count < len(scaled) else _NOTHING
    places = np.flatnonzero(scaled >= threshold)
    places = places[np.argsort(-scaled[places], kind="stable")][:count]
    return scaled[places], places


def _numbers(scaled: NDArray[np.float32]) -> NDArray[np.float32]:
    """What is not a number is never drawn from a truncated row."""
    return np.nan_to_num(scaled, nan=_NOTHING, posinf=np.inf, neginf=_NOTHING) if np.isnan(scaled.max()) else scaled
