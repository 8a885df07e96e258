"""Trees from the hidden states of drafters that have no head: the trees that they would have built.

A rank finds the best candidates among its own tokens; one gather brings all of them to rank 0, which merges them and
grows the trees. How much is gathered depends on wishes and rows alone, never on logits.

For rejection sampling, trees at temperature > 0 are drawn: noise that nobody else knows puts each depth's tokens in an
order, which is one of draws without replacement (the Gumbel top-k trick; Kool et al. 2019), and the tree has the shape
that the depth's probabilities, in falling order, would give it. So its shape tells nothing about its tokens.

Shapes: R logit rows, v tokens of this rank, K candidates of a row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from draftwood_kernels.build_tree import (
    Candidates,
    TreeWish,
    candidates_needed,
    grow_trees,
    perturb,
    top_candidates,
    top_scores,
)
from draftwood_kernels.sample import gumbel
from draftwood_verifier.parallel.groups import Group
from draftwood_wire.tree import TokenTree

_Key = tuple[int, int]  # seed, position


class DraftTreeBuilder:
    """Builds from logits of which this rank has the tokens of `vocabulary`, of `vocab_size` in all.

    With `random` it draws the trees of sampled requests; `laws` [R, v] are the logits over temperature that those of
    the last `build` were drawn from.
    """

    def __init__(
        self, vocabulary: slice, vocab_size: int, group: Group | None, random: np.random.Generator | None = None
    ) -> None:
        self.laws = torch.zeros(0, int(vocabulary.stop - vocabulary.start))
        self._first, self._count = int(vocabulary.start), int(vocabulary.stop - vocabulary.start)
        self._vocab_size = vocab_size
        self._group = group
        self._random = random
        self._noise: dict[_Key, NDArray[np.float32]] = {}
        self._older_noise: dict[_Key, NDArray[np.float32]] = {}

    def build(self, logits: torch.Tensor, wishes: Sequence[TreeWish]) -> list[TokenTree | None]:
        """logits [R, v], scribbled on -> a tree a wish; None where a row is not finite, and on ranks other than 0."""
        count = candidates_needed(wishes, self._vocab_size)
        if self._random is None:
            noise = self._noise_of(wishes)
            perturb(logits, wishes, lambda index, position: noise[wishes[index].seed or 0, position])
            candidates = self._best(logits, count)
        else:
            candidates = self._drawn(self._random, logits, wishes, count)
        if candidates is None:
            return [None] * len(wishes)
        return [
            None if arrays is None else TokenTree(token_ids=arrays[0], parents=arrays[1], log_probs=arrays[2])
            for arrays in grow_trees(candidates, wishes)
        ]

    def _drawn(
        self, random: np.random.Generator, logits: torch.Tensor, wishes: Sequence[TreeWish], count: int
    ) -> Candidates | None:
        """Tokens in the order in which they were drawn, with the probabilities of the tokens in falling order."""
        rows = [wish.temperature for wish in wishes for _ in range(wish.depths)]
        temperatures = torch.tensor(rows, device=logits.device)[:, None]
        hot = temperatures > 0
        self.laws = logits.float() / torch.where(hot, temperatures, 1.0)
        noise = torch.from_numpy(random.gumbel(size=self.laws.shape).astype(np.float32)).to(logits.device)
        shape, drawn = self._best(self.laws, count), self._best(torch.where(hot, self.laws + noise, self.laws), count)
        return shape and drawn and Candidates(log_probs=shape.log_probs, token_ids=drawn.token_ids)

    def _best(self, logits: torch.Tensor, count: int) -> Candidates | None:
        """The best of all ranks' tokens; None on ranks other than 0."""
        if self._group is None:
            return top_candidates(logits, count)
        offered = self._group.gather(_offers(logits, count, self._first))
        return _merged(offered, count) if self._group.leads else None

    def _noise_of(self, wishes: Sequence[TreeWish]) -> dict[_Key, NDArray[np.float32]]:
        """What was drawn for a rejected depth is wanted again next round, or one later when two groups take turns."""
        known = self._older_noise | self._noise
        keys = {
            (wish.seed, wish.position + depth)
            for wish in wishes
            if wish.temperature > 0 and wish.seed is not None
            for depth in range(wish.depths)
        }
        wanted = {key: known[key] if key in known else gumbel(*key, self._count, self._first) for key in keys}
        self._older_noise, self._noise = self._noise, wanted
        return wanted


def _offers(logits: torch.Tensor, count: int, first: int) -> NDArray[np.float64]:
    """[R, 1 + 2K]: the logarithm of the rank's mass, its K best scores and their token ids."""
    wide = logits.float()
    scores, ids = top_scores(wide, min(count, wide.shape[1]))
    held = scores.shape[1]
    offers = np.zeros((len(wide), 1 + 2 * count))
    offers[:, 1 + held : 1 + count] = -np.inf
    offers[:, 0] = wide.logsumexp(dim=1).numpy(force=True)
    offers[:, 1 : 1 + held] = scores.numpy(force=True)
    offers[:, 1 + count : 1 + count + held] = ids.numpy(force=True) + first
    return offers


def _merged(offered: NDArray[np.float64], count: int) -> Candidates:
    """offered [ranks, R, 1 + 2K]. The ranks' ids ascend, so ties go to the lower one."""
    with np.errstate(invalid="ignore"):
        totals = np.logaddexp.reduce(offered[:, :, :1])
        totals[~np.isfinite(totals)] = np.nan
        scores = np.concatenate(list(offered[:, :, 1 : 1 + count]), axis=1)
        ids = np.concatenate(list(offered[:, :, 1 + count :]), axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        log_probs = np.take_along_axis(scores, best, axis=1) - totals
    return Candidates(
        log_probs=torch.from_numpy(log_probs.astype(np.float32)),
        token_ids=torch.from_numpy(np.take_along_axis(ids, best, axis=1).astype(np.int32)),
    )
