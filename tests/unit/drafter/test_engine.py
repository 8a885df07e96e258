"""Drafts do not depend on how context arrived or who else is in the batch; pages always come back."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from draftwood_drafter import host_backend
from draftwood_drafter.backend import Draft
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.host_backend import HostBackend
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import DraftParams, FeatureRows, SessionFault, Shape
from draftwood_kernels.build_tree import best_first
from draftwood_kernels.sample import gumbel
from draftwood_wire.tree import check_tree
from tests.unit.drafter.pair import Pair

TREE = DraftParams(shape=Shape.TREE, node_limit=24)
CHAIN = DraftParams(shape=Shape.CHAIN, node_limit=256)


def context(model: DraftModel, length: int, seed: int) -> tuple[list[int], NDArray[np.float32]]:
    """Tokens and the features of all positions but the root's."""
    rng = np.random.default_rng([seed, length])
    tokens = rng.integers(0, model.vocab_size - 1, length).tolist()
    return tokens, rng.normal(size=(length - 1, model.feature_width)).astype(np.float32)


def fill(engine: DraftEngine, session_id: int, length: int, params: DraftParams) -> None:
    tokens, features = context(engine.model, length, session_id)
    engine.open(session_id, tokens, params, decoding=True)
    assert engine.append([FeatureRows(session_id=session_id, start=0, features=features)]) == []


def draft_ready(engine: DraftEngine) -> dict[int, Draft]:
    drafts, faults = engine.draft(engine.ready())
    assert faults == []
    return {draft.session_id: draft for draft in drafts}


def assert_same(left: Draft, right: Draft) -> None:
    assert left.base_len == right.base_len
    assert left.tree.token_ids.tolist() == right.tree.token_ids.tolist()
    assert left.tree.parents.tolist() == right.tree.parents.tolist()
    np.testing.assert_allclose(left.tree.log_probs, right.tree.log_probs, atol=1e-4)


def test_batch_equals_alone(engine: DraftEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = DraftParams(shape=Shape.TREE, node_limit=8, temperature=0.8, seed=11)
    wishes = {1: (1, TREE), 2: (40, CHAIN), 3: (7, sampled), 4: (23, TREE), 5: (40, sampled)}
    alone = {}
    for session_id, (length, params) in wishes.items():
        fill(engine, session_id, length, params)
        alone |= draft_ready(engine)
        engine.close(session_id)
    # Once in one group, once in groups of one or two.
    for columns in (host_backend.MAX_GATHERED_COLUMNS, 80):
        monkeypatch.setattr(host_backend, "MAX_GATHERED_COLUMNS", columns)
        for session_id, (length, params) in wishes.items():
            fill(engine, session_id, length, params)
        together = draft_ready(engine)
        assert together.keys() == alone.keys()
        for session_id, draft in together.items():
            assert_same(draft, alone[session_id])


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_large_drafts_take_more_threads_and_small_ones_leave_them_to_others(
    pair: Pair, engine: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = load_file(pair.draft / "model.safetensors")
    weights = sum(t.numel() for name, t in stored.items() if "layers." in name and t.ndim == 2)
    weights += engine.model.vocab_size * engine.model.config.hidden_size  # the target's head
    products = weights * engine.model.config.block_size
    monkeypatch.setattr(host_backend, "PRODUCTS_A_THREAD", 2 * products)
    threads: list[int] = []
    forward = engine.model.block_hidden

    def counted(roots: list[int], lengths: list[int], context: torch.Tensor) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return forward(roots, lengths, context)

    monkeypatch.setattr(engine.model, "block_hidden", counted)
    backend = HostBackend(engine.model, engine.cache)
    for session_id, length in enumerate([8, 8, 8, 8, 8, 8, 8, 8]):
        fill(engine, session_id, length, TREE)
    ready = engine.ready()
    with torch.inference_mode():
        for count in (8, 4, 3, 1):
            assert len(backend.draft(ready[:count])) == count
    assert threads == [3, 2, 1, 1]
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_so_does_much_context(engine: DraftEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine.model
    linears = model.weights.fc, model.weights.context_kv
    weights = sum(linear.in_features * linear.out_features for linear in linears)
    monkeypatch.setattr(host_backend, "PRODUCTS_A_THREAD", 10 * weights)
    threads: list[int] = []
    rows_of = model.context_rows

    def counted(features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return rows_of(features, positions)

    monkeypatch.setattr(model, "context_rows", counted)
    backend = HostBackend(model, engine.cache)
    monkeypatch.setattr(engine, "_backend", backend)
    for session_id, length in enumerate([2, 20, 21, 41]):
        fill(engine, session_id, length, TREE)
    assert threads == [1, 1, 2, 3]


def test_context_in_pieces_equals_at_once(engine: DraftEngine) -> None:
    fill(engine, 1, 31, TREE)
    whole = draft_ready(engine)[1]
    tokens, features = context(engine.model, 31, 1)
    engine.open(2, tokens, TREE, decoding=True)
    # Two interleaved ranges with overlaps; rows that are held already must not count.
    for start, stop in [(12, 20), (0, 5), (20, 30), (3, 9), (3, 4), (8, 13)]:
        assert engine.session(2) not in engine.ready()
        engine.append([FeatureRows(session_id=2, start=start, features=features[start:stop])])
    pieces = draft_ready(engine)[2]
    assert_same(whole, pieces)


def test_rows_already_held_are_ignored(engine: DraftEngine) -> None:
    fill(engine, 1, 12, TREE)
    _, features = context(engine.model, 12, 1)
    assert engine.append([FeatureRows(session_id=1, start=0, features=features * 3)]) == []
    changed = draft_ready(engine)[1]
    fill(engine, 1, 12, TREE)
    assert_same(changed, draft_ready(engine)[1])


def test_commits_extend_the_context(engine: DraftEngine) -> None:
    fill(engine, 1, 30, TREE)
    whole = draft_ready(engine)[1]
    tokens, features = context(engine.model, 30, 1)
    engine.open(1, tokens[:10], TREE, decoding=False)
    engine.append([FeatureRows(session_id=1, start=0, features=features[:10])])
    assert engine.ready() == []
    length = 10
    for committed in (1, 4, 8, 7):
        engine.commit(1, length, tokens[length : length + committed])
        length += committed
        engine.append([FeatureRows(session_id=1, start=0, features=features[: length - 1])])
        draft = draft_ready(engine)[1]
        assert draft.base_len == length
        assert engine.ready() == []
    assert_same(draft, whole)


@pytest.mark.parametrize("node_limit", [1, 2, 7, 8, 100, 256])
@pytest.mark.parametrize("shape", [Shape.CHAIN, Shape.TREE])
def test_trees_keep_to_the_format_and_the_limit(engine: DraftEngine, node_limit: int, shape: Shape) -> None:
    fill(engine, 1, 9, DraftParams(shape=shape, node_limit=node_limit))
    tree = draft_ready(engine)[1].tree
    depth = engine.model.config.block_size - 1
    check_tree(tree, vocab_size=engine.model.vocab_size, node_limit=node_limit, max_depth=depth)
    assert len(tree) == (min(depth, node_limit) if shape is Shape.CHAIN else node_limit)
    if shape is Shape.CHAIN:
        assert tree.parents.tolist() == list(range(len(tree)))


@torch.inference_mode()
def test_sampled_trees_use_the_noise_of_their_positions(engine: DraftEngine) -> None:
    params = DraftParams(shape=Shape.TREE, node_limit=12, temperature=0.7, seed=5)
    fill(engine, 1, 14, params)
    session = engine.session(1)
    assert session is not None
    tree = draft_ready(engine)[1].tree
    logits = engine.model.logits(HostBackend(engine.model, engine.cache).hidden_states([session])[0])
    noise = np.stack([gumbel(5, 14 + d, engine.model.vocab_size) for d in range(len(logits))])
    rows = torch.log_softmax(logits / 0.7 + torch.from_numpy(noise), dim=-1)
    values, ids = rows.sort(dim=-1, descending=True)
    tokens, parents, log_probs = best_first(values.tolist(), ids.tolist(), 12)
    assert tree.token_ids.tolist() == tokens.tolist()
    assert tree.parents.tolist() == parents.tolist()
    np.testing.assert_allclose(tree.log_probs, log_probs, atol=1e-4)


@torch.inference_mode()
def test_noise_is_drawn_once_a_position(engine: DraftEngine) -> None:
    fill(engine, 1, 6, DraftParams(shape=Shape.CHAIN, node_limit=8, temperature=1.0, seed=3))
    draft_ready(engine)
    session = engine.session(1)
    assert session is not None
    before = dict(session.noise)
    assert sorted(before) == list(range(6, 13))
    engine.commit(1, 6, [1, 2, 3])
    rows = [session.noise_row(position, engine.model.vocab_size) for position in range(9, 16)]
    assert sorted(session.noise) == list(range(9, 16))
    assert all(row is before[position] for position, row in zip(range(9, 13), rows, strict=False))


def test_off_sessions_take_no_pages(engine: DraftEngine) -> None:
    fill(engine, 1, 20, DraftParams(shape=Shape.OFF, node_limit=8))
    assert engine.ready() == []
    assert engine.cache.pages_free == engine.cache.pages_total


def rows(engine: DraftEngine, start: int, count: int, value: float = 0.0, width: int | None = None) -> FeatureRows:
    shape = (count, engine.model.feature_width if width is None else width)
    return FeatureRows(session_id=1, start=start, features=np.full(shape, value, np.float32))


@pytest.mark.parametrize(
    ("start", "count", "value", "width", "message"),
    [
        (0, 3, 0.0, 7, "features: shape"),
        (0, 3, np.nan, None, "features: not finite"),
        (5, 6, 0.0, None, "features: reach position 10, 10 tokens"),
    ],
)
def test_bad_features_end_only_their_session(
    engine: DraftEngine, start: int, count: int, value: float, width: int | None, message: str
) -> None:
    fill(engine, 2, 18, TREE)
    before = draft_ready(engine)[2]
    fill(engine, 2, 18, TREE)
    engine.open(1, context(engine.model, 10, 0)[0], TREE, decoding=True)
    good = rows(engine, 0, 2)
    faults = engine.append([good, rows(engine, start, count, value, width)])
    assert [(f.session_id, f.reason.startswith(message)) for f in faults] == [(1, True)]
    assert not engine.holds(1)
    assert_same(draft_ready(engine)[2], before)


def test_overflow_in_one_session_stays_there(engine: DraftEngine) -> None:
    fill(engine, 2, 18, TREE)
    before = draft_ready(engine)[2]
    fill(engine, 2, 18, TREE)
    engine.open(1, context(engine.model, 10, 0)[0], TREE, decoding=True)
    engine.append([rows(engine, 0, 9, value=3e38)])
    drafts, faults = engine.draft(engine.ready())
    assert [fault.session_id for fault in faults] == [1]
    assert_same(drafts[0], before)


def test_out_of_pages_ends_only_that_session(engine: DraftEngine) -> None:
    fill(engine, 2, 200, TREE)
    engine.open(1, context(engine.model, 90, 0)[0], TREE, decoding=True)
    faults = engine.append([rows(engine, 0, 40), rows(engine, 40, 40)])
    assert [(f.session_id, f.out_of_pages) for f in faults] == [(1, True)]
    assert set(draft_ready(engine)) == {2}


@pytest.mark.parametrize(("base_len", "tokens"), [(9, [1]), (11, [1]), (10, [97]), (10, [2**32 - 1])])
def test_commits_that_do_not_fit(engine: DraftEngine, base_len: int, tokens: list[int]) -> None:
    fill(engine, 1, 10, TREE)
    with pytest.raises(SessionFault):
        engine.commit(1, base_len, tokens)
    assert not engine.holds(1)


def test_block_beyond_the_drafts_positions(engine: DraftEngine) -> None:
    limit = engine.model.context_limit
    roomy = DraftEngine(engine.model, context_pages=300, page_size=4)
    fill(roomy, 1, limit - engine.model.config.block_size + 1, TREE)
    fill(roomy, 2, limit - engine.model.config.block_size + 2, TREE)
    drafts, faults = roomy.draft(roomy.ready())
    assert [draft.session_id for draft in drafts] == [1]
    assert [fault.session_id for fault in faults] == [2]


def test_ledger_after_random_sessions(engine: DraftEngine) -> None:
    rng = np.random.default_rng(4)
    for step in range(300):
        session_id = int(rng.integers(0, 8))
        action = rng.random()
        if action < 0.25:
            engine.close(session_id)
        elif action < 0.6 or not engine.holds(session_id):
            tokens, features = context(engine.model, int(rng.integers(1, 60)), step)
            engine.open(session_id, tokens, TREE, decoding=True)
            cut = int(rng.integers(0, len(tokens)))
            engine.append([FeatureRows(session_id=session_id, start=0, features=features[:cut])])
        else:
            session = engine.session(session_id)
            assert session is not None
            _, features = context(engine.model, len(session.tokens) + 1, step)
            engine.append([FeatureRows(session_id=session_id, start=0, features=features)])
        if step % 10 == 0:
            engine.draft(engine.ready())
        engine.cache.check_ledger()
