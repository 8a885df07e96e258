"""A target without a model: the logits of a row are a pure function of the tokens that the row sees.

It keeps token ids where a model keeps K and V, in pages and in scratch, so that a wrong page, slot, mask or commit
changes the tokens that come out. Cells nobody has written are poison.
"""

import hashlib
import time
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.plan import CommitPlan, DraftPlan, Path, StepPlan, Walk
from draftwood_verifier.step_features import StepFeatures
from draftwood_wire.tree import TokenTree

POISON = -1


class FakeTarget:
    """Implements `plan.Runner`."""

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        vocab_size: int = 24,
        context_limit: int = 256,
        layers: int = 4,
        hidden_size: int = 2,
        step_s: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.layers = layers
        self.context_limit = context_limit
        self.eos_token_ids: tuple[int, ...] = ()
        self.failure: Exception | None = None  # raised by the next execute
        self.step_s = step_s  # how long a step takes, whatever is in it
        self.device_s = 0.0  # what its GPU says of that, if it had one
        self.steps = 0
        self.rows_run = 0
        self.draft_plans: list[DraftPlan] = []
        self._page_size = page_size
        self._pages = np.full(pages * page_size, POISON, np.int64)
        self._plan: StepPlan | None = None
        self._layers: tuple[int, ...] = ()
        self._next_layers: tuple[int, ...] = ()

    def set_feature_layers(self, layer_ids: tuple[int, ...]) -> None:
        self._next_layers = layer_ids

    def execute(self, plan: StepPlan) -> list[Path]:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.steps += 1
        self.rows_run += len(plan.token_ids)
        self._plan, self._layers = plan, self._next_layers
        histories = self._histories(plan)
        time.sleep(self.step_s)
        return [self._walk(plan, walk, histories) for walk in plan.walks]

    def commit(self, plan: CommitPlan) -> None:
        assert self._plan is not None
        assert len(set(plan.slots.tolist())) == len(plan.slots), "two rows go to one slot"
        self._pages[plan.slots] = self._plan.token_ids[plan.rows]

    def build_trees(self, plan: DraftPlan) -> list[TokenTree | None]:
        """A chain for each wish, of the tokens that its rows begin with; none where one is not in the vocabulary."""
        self.draft_plans.append(plan)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        tokens = plan.hidden_states[:, 0].astype(np.int32)
        trees: list[TokenTree | None] = []
        for wish in plan.wishes:
            own, tokens = tokens[: wish.depths], tokens[wish.depths :]
            log_probs = -np.arange(1, wish.depths + 1, dtype=np.float32)
            tree = TokenTree(token_ids=own, parents=np.arange(wish.depths, dtype=np.int32), log_probs=log_probs)
            trees.append(tree if (own < self.vocab_size).all() else None)
        assert not len(tokens), "rows of no wish"
        return trees

    def features(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> NDArray[np.float32]:
        assert self._plan is not None
        assert set(layer_ids) <= set(self._layers), "features of a layer that was not kept"
        return feature_rows(self._plan.positions[rows], self._plan.token_ids[rows], layer_ids, self.hidden_size)

    def features_later(self, rows: NDArray[np.int32], layer_ids: tuple[int, ...]) -> StepFeatures:
        assert self._plan is not None
        read = partial(
            feature_rows, self._plan.positions[rows], self._plan.token_ids[rows], layer_ids, self.hidden_size
        )
        return StepFeatures(read, row_bytes=4 * len(layer_ids) * self.hidden_size)

    def _histories(self, plan: StepPlan) -> list[list[int]]:
        histories: list[list[int]] = []
        for segment, table in enumerate(plan.block_tables):
            first, end = int(plan.row_offsets[segment]), int(plan.row_offsets[segment + 1])
            prefix = self._prefix(table, int(plan.prefix_lens[segment]))
            for row in range(first, end):
                parent = int(plan.parents[row])
                assert -1 <= parent < row - first, "a parent must come before its children"
                history = [*(prefix if parent < 0 else histories[first + parent]), int(plan.token_ids[row])]
                assert plan.positions[row] == len(history) - 1, "a row's position is not its depth"
                assert plan.positions[row] < self.context_limit, "a row is beyond the context"
                histories.append(history)
        assert len(histories) == len(plan.token_ids)
        return histories

    def _prefix(self, table: NDArray[np.int32], length: int) -> list[int]:
        positions = np.arange(length)
        prefix = self._pages[table[positions // self._page_size] * self._page_size + positions % self._page_size]
        assert (prefix != POISON).all(), "a row sees a slot that nobody has written"
        return [int(token) for token in prefix]

    def _walk(self, plan: StepPlan, walk: Walk, histories: list[list[int]]) -> Path:
        assert plan.logit_rows[walk.first_logit] == walk.root_row
        children = {
            (int(parent), int(token)): node + 1
            for node, (parent, token) in enumerate(zip(walk.tree.parents, walk.tree.token_ids, strict=True))
        }
        node, tokens, rows = 0, [], [walk.root_row]
        while True:
            row = int(plan.logit_rows[walk.first_logit + node])
            token = self.draw(histories[row], walk.sampling)
            assert walk.position + len(tokens) == len(histories[row])
            tokens.append(token)
            child = children.get((node, token))
            if child is None:
                return Path(tokens=tokens, rows=rows)
            node = child
            rows.append(int(plan.logit_rows[walk.first_logit + node]))

    def draw(self, history: list[int], sampling: SamplingParams) -> int:
        """The token after `history`: keyed by seed and position only, as in the real sampler."""
        digest = hashlib.blake2b(np.array(history, np.int64).tobytes(), digest_size=8).digest()
        logits = np.random.default_rng(int.from_bytes(digest, "little")).normal(size=self.vocab_size)
        if sampling.temperature > 0:
            noise = np.random.default_rng([int(sampling.seed or 0), len(history)]).gumbel(size=self.vocab_size)
            logits = logits / sampling.temperature + noise
        return int(np.argmax(logits))

    def plain(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        stop_ids: Iterable[int] = (),
    ) -> list[int]:
        """The oracle: one token at a time, nothing paged."""
        sampling = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        tokens = list(prompt)
        while len(tokens) < len(prompt) + max_tokens:
            tokens.append(self.draw(tokens, sampling))
            if tokens[-1] in set(stop_ids):
                break
        return tokens[len(prompt) :]


def feature_rows(
    positions: NDArray[np.int32], tokens: NDArray[np.int32], layer_ids: tuple[int, ...], hidden_size: int = 2
) -> NDArray[np.float32]:
    """Features that say where they are from: (position + 1000 * layer, token), over and over, for each layer."""
    pairs = [np.stack([positions + 1000 * layer, tokens], axis=1) for layer in layer_ids]
    return np.concatenate([np.tile(pair, hidden_size // 2) for pair in pairs], axis=1).astype(np.float32)
