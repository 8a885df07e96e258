"""Whatever was held back, the drafter hears every token once, and features for exactly the rows it has not had."""

import numpy as np
import pytest

from draftwood_verifier.backlog import Backlog, Update
from draftwood_verifier.step_features import Rows, StepFeatures, ready


def rows(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)[:, None]


def held(first: int, count: int) -> Rows:
    """Beside rows of others."""
    return Rows(ready(rows(first - 2, count + 5)), 2, count)


def hear(known: list[int], updates: list[Update], features: dict[int, float]) -> None:
    """What a drafter makes of updates; fails on a gap or an overlap."""
    for update in updates:
        assert update.base_len == len(known)
        assert len(update.features) in (0, len(update.tokens))
        known += update.tokens
        for index, row in enumerate(update.features.reshape(-1).tolist()):
            position = update.base_len - 1 + index
            assert position not in features
            features[position] = row


@pytest.mark.parametrize("told_after", [(1, 2, 3, 4), (4,), (1, 4), (2, 4), (3, 4)])
def test_tokens_and_features_arrive_whole_however_long_they_waited(told_after: tuple[int, ...]) -> None:
    backlog = Backlog([1, 2, 3], features_from=0, prefilled=False)
    known, features = [1, 2, 3], {}
    backlog.hold_chunk(0, rows(0, 3))
    # Features are named by position: a commit's rows are those of its root and its accepted nodes.
    commits = [(0, [10], 0, 0), (1, [11], 3, 1), (2, [12, 13, 14], 4, 3), (3, [15, 16], 7, 2)]
    for number, (round_, tokens, first, count) in enumerate(commits, start=1):
        backlog.hold_tokens(round_, tokens, held(first, count), nodes_verified=5)
        if number in told_after:
            for start, chunk in backlog.take_chunks():
                features.update({start + i: float(x) for i, x in enumerate(chunk.reshape(-1))})
            updates = backlog.take_updates(7, 9)
            assert [u.nodes_wanted for u in updates] == [0] * (len(updates) - 1) + [9]
            assert updates[-1].round == round_
            hear(known, updates, features)
    assert known == [1, 2, 3, 10, 11, 12, 13, 14, 15, 16]
    assert features == {position: float(position) for position in range(9)}
    assert backlog.size_bytes == 0


def test_a_session_that_came_late_knows_its_first_token_already() -> None:
    backlog = Backlog([1, 2, 3, 10], features_from=3, prefilled=True)
    backlog.hold_tokens(1, [11], held(3, 1), nodes_verified=0)
    (update,) = backlog.take_updates(7, 0)
    assert (update.base_len, update.tokens, len(update.features)) == (4, [11], 1)
    assert backlog.take_updates(7, 5) == []


def test_features_of_a_step_are_put_together_once_and_only_when_read() -> None:
    reads: list[np.ndarray] = []

    def read() -> np.ndarray:
        reads.append(rows(0, 4))
        return reads[-1]

    step = StepFeatures(read, row_bytes=4)
    first, second = Rows(step, 0, 1), Rows(step, 1, 3)
    assert (first.size_bytes, second.size_bytes, len(reads)) == (4, 12, 0)
    np.testing.assert_array_equal(second.read(), rows(1, 3))
    np.testing.assert_array_equal(first.read(), rows(0, 1))
    assert len(reads) == 1
