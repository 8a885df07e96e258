"""A drafter without the target's head sends what its head would have been given, and reads no head."""

import numpy as np
import pytest
import torch

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.frame_handler import FrameHandler
from draftwood_drafter.host_backend import HostBackend
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.model import DraftModel
from draftwood_drafter.session import DraftParams, Shape
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_wire.tensor import MAX_CHUNK_BYTES, tensor_from_proto
from tests.unit.drafter.frames import chunk, commits, opened, proposed
from tests.unit.drafter.pair import Pair
from tests.unit.drafter.test_engine import draft_ready, fill

DEPTHS = 7


@pytest.fixture(scope="module")
def headless(pair: Pair) -> DraftModel:
    return load_draft_model(pair.target, pair.draft, with_head=False)


@pytest.mark.parametrize("nodes", [2, 7, 24])
@torch.inference_mode()
def test_rows_are_the_final_hidden_states(headless: DraftModel, engine: DraftEngine, nodes: int) -> None:
    bare = DraftEngine(headless, context_pages=64, page_size=4)
    params = DraftParams(shape=Shape.TREE, node_limit=nodes, temperature=0.8, seed=1)
    for each in (bare, engine):
        fill(each, 1, 9, params)
        fill(each, 2, 30, params)
    session = engine.session(1)
    assert session is not None
    expected = HostBackend(engine.model, engine.cache).hidden_states([session])[0].numpy()
    drafts = draft_ready(bare)
    assert drafts.keys() == {1, 2}
    rows = drafts[1].hidden_states
    assert rows is not None
    # No node is deeper than there are nodes.
    np.testing.assert_allclose(rows, expected[: min(nodes, DEPTHS)], atol=1e-5)
    assert len(drafts[1].tree) == 0
    assert bare.ready() == []


def test_rows_that_are_not_finite_end_the_session(headless: DraftModel, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = DraftEngine(headless, context_pages=64, page_size=4)
    params = DraftParams(shape=Shape.TREE, node_limit=8)
    fill(bare, 1, 9, params)
    fill(bare, 2, 9, params)
    hidden = torch.zeros(2, DEPTHS, headless.config.hidden_size)
    hidden[0, 3, 5] = torch.nan
    monkeypatch.setattr(HostBackend, "hidden_states", lambda _, group: hidden[: len(group)])
    drafts, faults = bare.draft(bare.ready())
    assert [fault.session_id for fault in faults] == [1]
    assert [draft.session_id for draft in drafts] == [2]
    assert not bare.holds(1)


def test_large_batches_go_in_several_frames(headless: DraftModel, monkeypatch: pytest.MonkeyPatch) -> None:
    width, sessions = headless.feature_width, 5
    bare = DraftEngine(headless, context_pages=64, page_size=4)
    large = 2 * MAX_CHUNK_BYTES // 5 // (4 * DEPTHS)
    monkeypatch.setattr(HostBackend, "hidden_states", lambda _, group: torch.ones(len(group), DEPTHS, large))
    frames = [frame for i in range(sessions) for frame in (opened(i, [3, 4]), chunk(width, i, 0, 2))]
    frames.append(commits(width, [(i, 2, [5], 0) for i in range(sessions)]))
    answers = FrameHandler(bare, DrafterTelemetry(metrics=""), 256).handle(frames)
    assert [len(answer.proposals.proposals) for answer in answers] == [2, 2, 1]
    assert all(answer.ByteSize() <= MAX_CHUNK_BYTES for answer in answers)
    proposals = proposed(answers)
    assert proposals.keys() == set(range(sessions))
    assert tensor_from_proto(proposals[4].hidden_states).shape == (DEPTHS, large)
