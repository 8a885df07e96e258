"""For how many trees the one that was asked for stands."""

from typing import Any

import pytest

from draftwood_verifier.backlog import Backlog
from draftwood_verifier.budget.cost_table import Axes, CostTable
from draftwood_verifier.budget.policy import Ask, Batch, Policy
from draftwood_verifier.commit import Commit
from draftwood_verifier.drafting import DrafterPool
from draftwood_verifier.sequence import Draft, DraftMode
from tests.unit.verifier.test_rounds import commit, sequence

BATCH = Batch(auto=40, sequences=40, context=100.0, sampled=0.0)


def asked(
    verdict: Ask, sessions: int, monkeypatch: pytest.MonkeyPatch, *, mode: DraftMode = DraftMode.AUTO, nodes: int = 8
) -> list[Draft]:
    policy = Policy(CostTable(Axes(sequences=(1, 64))))
    monkeypatch.setattr(policy, "next_ask", lambda _batch: verdict)
    monkeypatch.setattr(policy, "nodes_wanted", lambda batch: nodes if batch == BATCH.auto else None)
    drafter: Any = object()  # in no pool's list: nothing is sent
    commits: list[Commit] = []
    for session_id in range(sessions):
        own = sequence(session_id=session_id, mode=mode if session_id else DraftMode.AUTO)
        own.draft = Draft(
            drafter, backlog=Backlog([1, 2], features_from=0, prefilled=True), node_limit=8, lagging=False
        )
        commits.append(commit(sequence=own))
    DrafterPool(policy, vocab_size=100, wait_s=0.2).ask(commits, lambda: BATCH)
    return [each.sequence.draft for each in commits if each.sequence.draft and each.sequence.draft.asked_len]


def test_a_new_request_is_one_of_all_that_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    (draft,) = asked(Ask.DRAFT, 1, monkeypatch)
    assert (draft.ask_size, draft.round_size) == (1, 40)


def test_probes_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = asked(Ask.PROBE, 40, monkeypatch)
    assert len(drafts) == 8
    assert {draft.round_size for draft in drafts} == {8}


@pytest.mark.parametrize(
    ("verdict", "mode", "nodes", "wanted"),
    [
        (Ask.DRAFT, DraftMode.AUTO, 4, 4),
        (Ask.DRAFT, DraftMode.AUTO, 12, 8),  # its request allows no more
        (Ask.PROBE, DraftMode.AUTO, 4, 8),
        (Ask.DRAFT, DraftMode.TREE, 4, 8),
    ],
)
def test_only_the_rounds_of_auto_mode_ask_for_fewer_nodes(
    verdict: Ask, mode: DraftMode, nodes: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *others = asked(verdict, 3, monkeypatch, mode=mode, nodes=nodes)  # the first one is in auto mode anyway
    assert [draft.nodes_wanted for draft in others] == [wanted] * 2
