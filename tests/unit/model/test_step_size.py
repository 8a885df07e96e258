"""Sizes that steps are padded to."""

import dataclasses

import pytest

from draftwood_verifier.gpu.step_size import StepSize, padded, size_of
from tests.unit.model.targets import SamplingParams, chain, decode, make_plan, make_tree


def test_the_exact_size() -> None:
    tree = make_tree([1, 2, 3], [0, 0, 1])
    plan = make_plan(
        [
            decode(1, 9, [1, 2, 3], tree),
            chain([1, 2, 3, 4, 5, 6], 4, [1, 2]),
            decode(1, 0, [4], sampling=SamplingParams(temperature=1, top_p=0.5)),
        ],
        logit_rows=[0, 1, 2, 3, 10],
    )
    assert size_of(plan) == StepSize(
        rows=11,
        segments=3,
        logits=5,
        walks=2,
        table_pages=3,
        prefix_len=9,
        tree_rows=4,
        depth=6,
        places=4,
        truncates=True,
    )


def test_a_greedy_draw_truncates_nothing() -> None:
    assert not size_of(make_plan([decode(1, 0, [4], sampling=SamplingParams(temperature=0, top_k=3))])).truncates


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 17, 25, 64, 65, 97, 1100])
def test_padding_holds_the_step_and_is_a_third_at_most(rows: int) -> None:
    size = StepSize(
        rows=rows,
        segments=rows,
        logits=rows,
        walks=rows,
        table_pages=rows,
        prefix_len=rows,
        tree_rows=min(rows, 257),
        depth=min(rows, 257),
        places=min(rows, 257),
        truncates=False,
    )
    found = padded(size)
    for field in dataclasses.fields(StepSize):
        assert getattr(found, field.name) >= getattr(size, field.name), field.name
    assert found.rows == found.logits < 1.5 * rows + 1
    assert padded(found) == found


def test_all_plain_steps_have_a_few_sizes() -> None:
    sizes = {
        padded(size_of(make_plan([decode(1, length, [0] * (length // 4 + 1))] * batch)))
        for batch in range(1, 65)
        for length in (0, 30, 60)
    }
    assert len({(size.rows, size.segments) for size in sizes}) <= 14
    assert {size.prefix_len for size in sizes} == {1024}
