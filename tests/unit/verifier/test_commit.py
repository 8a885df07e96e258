"""Where a drawn path is cut: the first stop token, else the length limit, wherever in the path they fall."""

import numpy as np
import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier import commit
from draftwood_verifier.backlog import Backlog
from draftwood_verifier.plan import Path
from draftwood_verifier.sequence import Draft, DraftMode, FinishReason, Sequence
from draftwood_wire.tree import TokenTree
from tests.unit.verifier.test_scheduler import Quiet

STOP = 9


def make_tree(nodes: int) -> TokenTree:
    return TokenTree(
        token_ids=np.full(nodes, 5, np.int32),
        parents=np.arange(nodes, dtype=np.int32),
        log_probs=np.zeros(nodes, np.float32),
    )


def make_sequence(*, max_tokens: int, output: int = 1) -> Sequence:
    return Sequence(
        session_id=1,
        tokens=[1, 2, 3] + [4] * output,
        prompt_len=3,
        length_limit=3 + max_tokens,
        stop_ids=frozenset({STOP}),
        sampling=SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0),
        mode=DraftMode.TREE,
        node_limit=16,
    )


@pytest.mark.parametrize("offset", range(5))
def test_stop_at_every_offset(offset: int) -> None:
    tokens = [5] * 5
    tokens[offset] = STOP
    record = commit.decide(
        make_sequence(max_tokens=100), Path(tokens=tokens, rows=[7, 8, 9, 10, 11]), tree=make_tree(6)
    )
    assert record.tokens == tokens[: offset + 1]
    assert record.rows == [7, 8, 9, 10, 11][: offset + 1]
    assert record.nodes == [0, 1, 2, 3, 4][: offset + 1]
    assert (record.finish_reason, record.cut) == (FinishReason.STOP, 4 - offset)


@pytest.mark.parametrize("room", range(1, 7))
def test_length_at_every_offset(room: int) -> None:
    record = commit.decide(
        make_sequence(max_tokens=1 + room), Path(tokens=[5] * 5, rows=list(range(5))), tree=make_tree(4)
    )
    assert len(record.tokens) == len(record.rows) == min(room, 5)
    assert record.finish_reason is (FinishReason.LENGTH if room <= 5 else None)


def test_stop_wins_over_length_and_hides_what_follows() -> None:
    path = Path(tokens=[10, 11, STOP, 20, 21, 22], rows=list(range(6)))
    record = commit.decide(make_sequence(max_tokens=6), path, tree=make_tree(5))
    assert (record.tokens, record.finish_reason) == ([10, 11, STOP], FinishReason.STOP)
    last = commit.decide(make_sequence(max_tokens=4), path, tree=make_tree(5))
    assert (last.tokens, last.finish_reason) == ([10, 11, STOP], FinishReason.STOP)


def test_prefill_is_round_zero_and_keeps_no_rows() -> None:
    sequence = make_sequence(max_tokens=5, output=0)
    sequence.computed = 3
    record = commit.decide(sequence, Path(tokens=[4], rows=[2]), tree=make_tree(0))
    assert (record.round, record.rows, record.base_len) == (0, [], 3)
    commit.apply(record)
    assert (sequence.tokens[-1], sequence.rounds, sequence.computed) == (4, 0, 3)


def test_counters_add_up() -> None:
    sequence = make_sequence(max_tokens=100)
    sequence.computed = 3
    for tokens, nodes in (([5, 6, 7], 4), ([5], 0), ([5], 4)):
        commit.apply(commit.decide(sequence, Path(tokens=tokens, rows=list(range(len(tokens)))), tree=make_tree(nodes)))
    assert (sequence.rounds, sequence.speculative_rounds) == (3, 2)
    assert (sequence.proposed_nodes, sequence.accepted_nodes) == (8, 2)
    assert len(sequence.tokens) - 3 == 1 + sequence.rounds + sequence.accepted_nodes
    assert sequence.computed == len(sequence.tokens) - 1


@pytest.mark.parametrize("rerooted", [True, False])
def test_a_draft_is_on_record_whole_unless_it_was_about_an_earlier_length(rerooted: bool) -> None:
    sequence = make_sequence(max_tokens=10)
    backlog = Backlog(sequence.tokens, features_from=0, prefilled=True)
    sequence.draft = Draft(Quiet(), backlog=backlog, node_limit=8, lagging=False)
    sequence.draft.tree, sequence.draft.rerooted = make_tree(5), rerooted
    record = commit.decide(sequence, Path(tokens=[5], rows=[0]), tree=make_tree(2))
    assert record.nodes_verified == 2
    assert record.draft is (None if rerooted else sequence.draft.tree)
