"""Frames in, frames out: one draft for whatever is queued, and one session's faults stay its own."""

import pytest

from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.frame_handler import FrameHandler
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_wire.v1 import sampling_pb2, verifier_service_pb2
from tests.unit.drafter.frames import Response, chunk, closed, commits, errors, opened, proposed
from tests.unit.drafter.pair import FEATURE_WIDTH as WIDTH


@pytest.fixture
def handler(engine: DraftEngine) -> FrameHandler:
    return FrameHandler(engine, DrafterTelemetry(metrics=""), node_limit=16)


def start(handler: FrameHandler, session_id: int, length: int = 6) -> None:
    """A session right after its prefill and first token."""
    frames = [opened(session_id, list(range(length - 1))), chunk(WIDTH, session_id, 0, length - 1)]
    answers = handler.handle([*frames, commits(WIDTH, [(session_id, length - 1, [5], 0)])])
    assert proposed(answers)[session_id].base_len == length


def test_prefill_then_first_token(handler: FrameHandler) -> None:
    assert handler.handle([opened(1, [4, 5, 6])]) == []
    assert handler.handle([chunk(WIDTH, 1, 0, 2)]) == []
    assert handler.handle([chunk(WIDTH, 1, 2, 1)]) == []
    answers = handler.handle([commits(WIDTH, [(1, 3, [7], 0)])])
    assert proposed(answers)[1].base_len == 4
    assert len(proposed(answers)[1].tree.token_ids) == 16
    assert handler.handle([]) == []


def test_queued_frames_are_drafted_for_once(handler: FrameHandler) -> None:
    start(handler, 1)
    queued = [commits(WIDTH, [(1, base, [8], 1)]) for base in (6, 7, 8, 9)]
    answers = handler.handle([*queued, commits(WIDTH, [(1, 10, [3, 4, 5], 3)])])
    assert len(answers) == 1
    assert [(p.session_id, p.base_len) for p in answers[0].proposals.proposals] == [(1, 13)]


def test_sessions_of_one_step_share_a_batch(handler: FrameHandler) -> None:
    for session_id in (1, 2, 3):
        start(handler, session_id, length=4 + session_id)
    answers = handler.handle([commits(WIDTH, [(3, 7, [1, 2], 2), (1, 5, [1], 1), (2, 6, [9, 9, 9], 3)])])
    assert len(answers) == 1
    assert {i: p.base_len for i, p in proposed(answers).items()} == {1: 6, 2: 9, 3: 9}


def test_handed_over_half_way(handler: FrameHandler) -> None:
    answers = handler.handle([opened(1, list(range(10)), features_from=9)])
    assert [a.context_request for a in answers] == [verifier_service_pb2.ContextRequest(session_id=1, from_position=0)]
    assert handler.handle([chunk(WIDTH, 1, 0, 5)]) == []
    # Live rows overtake the replay.
    assert handler.handle([commits(WIDTH, [(1, 10, [3, 4], 2)])]) == []
    answers = handler.handle([chunk(WIDTH, 1, 5, 4)])
    assert proposed(answers)[1].base_len == 12


def test_handed_over_and_complete_before_the_next_commit(handler: FrameHandler) -> None:
    handler.handle([opened(1, list(range(10)), features_from=9)])
    assert proposed(handler.handle([chunk(WIDTH, 1, 0, 9)]))[1].base_len == 10


def test_prefix_cache_hit_asks_for_the_hit_only(handler: FrameHandler) -> None:
    answers = handler.handle([opened(1, list(range(10)), features_from=4), chunk(WIDTH, 1, 4, 6)])
    assert len(answers) == 1
    handler.handle([commits(WIDTH, [(1, 10, [3], 0)])])
    assert proposed(handler.handle([chunk(WIDTH, 1, 0, 4)]))[1].base_len == 11


def test_off_sessions_are_silent(handler: FrameHandler) -> None:
    off = opened(1, [1, 2, 3], features_from=2, mode=sampling_pb2.SPECULATION_MODE_OFF)
    assert handler.handle([off, chunk(WIDTH, 1, 0, 3), commits(WIDTH, [(1, 3, [4], 0), (1, 4, [5], 1)])]) == []


@pytest.mark.parametrize(("wish", "nodes"), [(0, 16), (5, 5), (256, 16)])
def test_node_limit_is_the_smaller_one(handler: FrameHandler, wish: int, nodes: int) -> None:
    frames = [opened(1, [1, 2], node_limit=wish), chunk(WIDTH, 1, 0, 2), commits(WIDTH, [(1, 2, [3], 0)])]
    assert len(proposed(handler.handle(frames))[1].tree.token_ids) == nodes


def test_closing_frees_pages(engine: DraftEngine, handler: FrameHandler) -> None:
    start(handler, 1)
    assert engine.cache.pages_free < engine.cache.pages_total
    handler.handle([closed(1)])
    assert engine.cache.pages_free == engine.cache.pages_total


def test_unknown_sessions_are_ignored(handler: FrameHandler) -> None:
    start(handler, 1)
    answers = handler.handle(
        [chunk(WIDTH, 9, 0, 3), Response(), closed(9), commits(WIDTH, [(9, 4, [1], 2), (1, 6, [1], 1)])]
    )
    assert errors(answers) == {}
    assert proposed(answers)[1].base_len == 7


def test_faults_end_one_session_each(handler: FrameHandler) -> None:
    for session_id in (1, 2, 3, 4, 5):
        start(handler, session_id)
    answers = handler.handle(
        [
            chunk(5, 1, 6, 1),
            commits(WIDTH, [(2, 5, [1], 1), (3, 6, [97], 1), (4, 6, [1], 2), (5, 6, [1], 1)]),
            opened(6, []),
            opened(7, [2, 97]),
        ]
    )
    assert {i: message.split(":")[0] for i, message in errors(answers).items()} == {
        1: "features",
        2: "base_len",
        3: "token_ids",
        4: "feature_rows",
        6: "token_ids",
        7: "token_ids",
    }
    assert set(proposed(answers)) == {5}
    # What else comes about them is ignored.
    later = handler.handle([commits(WIDTH, [(2, 6, [1], 1), (5, 7, [1], 1)])])
    assert set(proposed(later)) == {5}
    assert errors(later) == {}


def test_commit_features_that_do_not_fit(handler: FrameHandler) -> None:
    start(handler, 1)
    start(handler, 2)
    answers = handler.handle([commits(WIDTH, [(1, 6, [1], 1), (2, 6, [1], 1)], rows=3)])
    assert set(errors(answers)) == {1, 2}
    start(handler, 1)


def test_reopened_session_starts_anew(handler: FrameHandler) -> None:
    start(handler, 1)
    frames = [chunk(WIDTH, 1, 5, 1), opened(1, [1, 2, 3]), chunk(WIDTH, 1, 0, 3), commits(WIDTH, [(1, 3, [4], 0)])]
    assert proposed(handler.handle(frames))[1].base_len == 4
