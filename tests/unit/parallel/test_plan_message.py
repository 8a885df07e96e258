"""What rank 0 broadcasts says all that the others need."""

import dataclasses

import numpy as np

from draftwood_kernels.build_tree import TreeWish
from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.plan import CommitPlan, DraftPlan, StepPlan, Walk
from draftwood_verifier.plan_message import decode, decode_drafts, encode, encode_drafts
from tests.unit.model.targets import chain, commit_plan, make_plan, make_tree
from tests.unit.model.targets import decode as segment

SAMPLING = SamplingParams(temperature=0.1, top_k=3, top_p=1 / 3, min_p=1e-9, seed=2**64 - 1)
NOTHING = CommitPlan(rows=np.zeros(0, np.int32), slots=np.zeros(0, np.int32))


def same(one: object, other: object) -> None:
    """Recursive equality of dataclasses, lists and arrays; log-probabilities are not sent."""
    if dataclasses.is_dataclass(one):
        assert type(one) is type(other)
        for field in dataclasses.fields(one):
            if field.name != "log_probs":
                same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, list):
        assert isinstance(other, list)
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs)
    elif isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def mixed_plan() -> StepPlan:
    tree = make_tree([5, 0, 11, 12], [0, 0, 1, 3])
    segments = [
        segment(9, 3, [7, 1], tree, SAMPLING),
        chain([4, 4, 0], 6, [2, 3, 5]),
        segment(1, 0, []),
        segment(2, 8, [0, 4, 6], make_tree([1], [0])),
    ]
    logit_rows = [0, 1, 2, 3, 4, 7, 8, 9, 10]
    plan = make_plan(segments, logit_rows)
    walks = [
        dataclasses.replace(walk, first_logit=logit_rows.index(walk.root_row), draft_row=number - 1)
        for number, walk in enumerate(plan.walks)
    ]
    prefill = Walk(segment=1, first_logit=5, root_row=7, tree=make_tree([], []), position=9, sampling=SAMPLING)
    return dataclasses.replace(plan, walks=[*walks, prefill])


def test_a_step_survives_the_way() -> None:
    commit, plan = commit_plan([0, 3, 5], 2, [4, 8]), mixed_plan()
    back = decode(encode(commit, plan))
    same(commit, back[0])
    same(plan, back[1])


def test_a_step_that_keeps_and_draws_nothing() -> None:
    plan = make_plan([chain([3], 0, [])], logit_rows=[])
    back = decode(encode(NOTHING, plan))
    same(NOTHING, back[0])
    same(plan, back[1])


def test_the_size_is_the_stated_one() -> None:
    plan = mixed_plan()
    pages = sum(map(len, plan.block_tables))
    bound = 4 * (7 + 4 * len(plan.token_ids) + 3 * len(plan.block_tables) + 15 * len(plan.walks) + pages + 2 * 3)
    assert encode(commit_plan([0, 3, 5], 2, [4, 8]), plan).nbytes <= bound


def test_drafts_survive_the_way() -> None:
    wishes = [
        TreeWish(depths=2, position=7, is_chain=False, node_limit=256, temperature=0.1, seed=2**64 - 1),
        TreeWish(depths=1, position=2**20, is_chain=True, node_limit=1, temperature=0.0, seed=0),
    ]
    states = np.random.default_rng(0).standard_normal((3, 5), np.float32)
    plan = DraftPlan(hidden_states=states, wishes=wishes)
    back = decode_drafts(encode_drafts(plan))
    same(plan, back)
