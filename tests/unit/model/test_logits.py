"""Logits and features of every variant against transformers, for every way rows can come."""

from collections.abc import Callable

import numpy as np
import pytest

from draftwood_kernels.sample import SamplingParams
from draftwood_verifier.runner import Runner
from tests.unit.model.targets import KINDS, VARIANTS, VOCAB, Oracle, chain, commit_plan, decode, make_plan, make_tree

ATOL = 1e-4
# Side by side, with room to extend; side by side without room; scattered.
SIDE_BY_SIDE = list(range(3, 23))
SCATTERED = [7, 3, 60, 1, 22, 40, 5, 6, 12, 11, 50, 33]
# A root with two children, of which the first has two, and a deeper path: siblings, cousins, token id 0.
TREE = make_tree([5, 0, 11, 12, 13, 40, 41], [0, 0, 1, 1, 2, 3, 6])

Runners = Callable[[str], Runner]
Oracles = Callable[[str], Oracle]


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def prefill(runner: Runner, ids: list[int], table: list[int]) -> None:
    """Commit all of ids."""
    if ids:
        runner.forward(make_plan([chain(ids, 0, table)]))
        runner.commit(commit_plan(list(range(len(ids))), 0, table))


def paths(ids: list[int]) -> list[list[int]]:
    """What each row of ids[-1] + TREE sees: ids and the tokens down to it."""
    seen = [ids]
    for token, parent in zip(TREE.token_ids.tolist(), TREE.parents.tolist(), strict=True):
        seen.append([*seen[parent], token])
    return seen


@pytest.mark.parametrize("variant", VARIANTS)
def test_whole_prompt(variant: str, runner: Runners, oracle: Oracles) -> None:
    ids = prompt(120)
    logits = runner(variant).forward(make_plan([chain(ids, 0, SCATTERED)]))
    np.testing.assert_allclose(logits, oracle(variant).logits(ids), atol=ATOL)


@pytest.mark.parametrize("table", [SIDE_BY_SIDE, SCATTERED], ids=["side-by-side", "scattered"])
@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_chunked_prefill(variant: str, chunk: int, table: list[int], runner: Runners, oracle: Oracles) -> None:
    ids, target = prompt(45), runner(variant)
    expected = oracle(variant).logits(ids)
    for start in range(0, len(ids), chunk):
        rows = ids[start : start + chunk]
        logits = target.forward(make_plan([chain(rows, start, table)]))
        np.testing.assert_allclose(logits, expected[start : start + chunk], atol=ATOL)
        target.commit(commit_plan(list(range(len(rows))), start, table))


@pytest.mark.parametrize("table", [SIDE_BY_SIDE, SCATTERED], ids=["side-by-side", "scattered"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_token_at_a_time(variant: str, table: list[int], runner: Runners, oracle: Oracles) -> None:
    ids, target = prompt(40), runner(variant)
    expected = oracle(variant).logits(ids)
    for position, token in enumerate(ids):
        logits = target.forward(make_plan([decode(token, position, table)]))
        np.testing.assert_allclose(logits[0], expected[position], atol=ATOL)
        target.commit(commit_plan([0], position, table))


@pytest.mark.parametrize("length", [1, 2, 4, 21, 33])
@pytest.mark.parametrize("table", [SIDE_BY_SIDE, SIDE_BY_SIDE[:10], SCATTERED], ids=["room", "no-room", "scattered"])
@pytest.mark.parametrize("variant", KINDS)
def test_every_path_of_a_tree_is_its_own_straight_run(
    variant: str, length: int, table: list[int], runner: Runners, oracle: Oracles
) -> None:
    ids, target = prompt(length), runner(variant)
    prefill(target, ids[:-1], table)
    logits = target.forward(make_plan([decode(ids[-1], length - 1, table, TREE)]))
    for row, path in zip(logits, paths(ids), strict=True):
        np.testing.assert_allclose(row, oracle(variant).logits(path)[-1], atol=ATOL)


def test_accepted_rows_are_what_later_steps_see(runner: Runners, oracle: Oracles) -> None:
    ids, target = prompt(18), runner("qwen3-tied")
    prefill(target, ids[:-1], SIDE_BY_SIDE)
    for _ in range(3):
        target.forward(make_plan([decode(ids[-1], len(ids) - 1, SIDE_BY_SIDE, TREE)]))
        # Accept nodes 2 and 5 (tokens 0, 13), which lie apart in scratch, then a bonus.
        target.commit(commit_plan([0, 2, 5], len(ids) - 1, SIDE_BY_SIDE))
        ids += [0, 13, 9]
    logits = target.forward(make_plan([decode(ids[-1], len(ids) - 1, SIDE_BY_SIDE)]))
    np.testing.assert_allclose(logits[0], oracle("qwen3-tied").logits(ids)[-1], atol=ATOL)


def test_a_batch_of_sessions_replays_and_chunks(runner: Runners, oracle: Oracles) -> None:
    """All kinds of segments in one flat forward; each as if it were alone, up to rounding."""
    target, expected = runner("llama-llama3"), oracle("llama-llama3")
    prompts = {name: prompt(length, seed=length) for name, length in [("a", 9), ("b", 30), ("c", 14), ("d", 1)]}
    tables = {"a": [0, 1, 2, 3, 4], "b": [30, 20, 25, 24, 50, 52, 53, 54], "c": [8, 9, 10, 11], "d": [63]}
    for name, committed in (("a", 8), ("b", 29), ("c", 6)):
        prefill(target, prompts[name][:committed], tables[name])
    segments = [
        decode(prompts["a"][8], 8, tables["a"], TREE),
        chain(prompts["b"][5:17], 5, tables["b"]),
        chain(prompts["c"][6:], 6, tables["c"]),
        decode(prompts["b"][29], 29, tables["b"]),
        decode(prompts["d"][0], 0, tables["d"], TREE),
    ]
    alone = [target.forward(make_plan([segment])).numpy() for segment in segments]
    together = target.forward(make_plan(segments)).numpy()
    rows = [
        *[expected.logits(path)[-1:] for path in paths(prompts["a"])],
        expected.logits(prompts["b"])[5:17],
        expected.logits(prompts["c"])[6:],
        expected.logits(prompts["b"])[29:],
        *[expected.logits(path)[-1:] for path in paths(prompts["d"])],
    ]
    np.testing.assert_allclose(together, np.concatenate(rows), atol=ATOL)
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


def test_a_replay_leaves_the_pages_alone(runner: Runners) -> None:
    target, ids = runner("qwen3-tied"), prompt(30)
    prefill(target, ids, SIDE_BY_SIDE)
    before = target._pool.pages.clone()
    target.forward(make_plan([chain(ids[4:20], 4, SIDE_BY_SIDE)]))
    np.testing.assert_array_equal(target._pool.pages, before)


def test_a_tree_leaves_committed_slots_alone(runner: Runners) -> None:
    target, ids = runner("qwen3-tied"), prompt(30)
    prefill(target, ids[:-1], SIDE_BY_SIDE)
    before = target._pool.pages.clone()
    target.forward(make_plan([decode(ids[-1], 29, SIDE_BY_SIDE, TREE)]))
    own = range(SIDE_BY_SIDE[0] * 4 + 29, SIDE_BY_SIDE[0] * 4 + 29 + 8)
    others = [slot for slot in range(before.shape[1]) if slot not in own]
    np.testing.assert_array_equal(target._pool.pages[:, others], before[:, others])


def test_only_asked_rows_have_logits(runner: Runners, oracle: Oracles) -> None:
    ids = prompt(20)
    logits = runner("llama").forward(make_plan([chain(ids, 0, SCATTERED)], logit_rows=[3, 19]))
    np.testing.assert_allclose(logits, oracle("llama").logits(ids)[[3, 19]], atol=ATOL)
    assert runner("llama").forward(make_plan([chain(ids, 0, SCATTERED)], logit_rows=[])).shape == (0, VOCAB)


@pytest.mark.parametrize("variant", ["qwen3-tied", "llama", "qwen3-moe", "deepseek"])
def test_features_are_outputs_of_decoder_layers(variant: str, runner: Runners, oracle: Oracles) -> None:
    ids, target = prompt(25), runner(variant)
    target.set_feature_layers((2, 0))
    target.forward(make_plan([chain(ids, 0, SCATTERED)]))
    rows = np.array([24, 3, 4], np.int32)
    np.testing.assert_allclose(target.features(rows, (2, 0)), oracle(variant).features(ids, (2, 0))[rows], atol=ATOL)
    with pytest.raises(ValueError, match="feature layer 4"):
        target.set_feature_layers((4,))


def test_features_are_read_later_as_they_were(runner: Runners) -> None:
    """Of all rows of a step, or of some; the steps since don't show in them."""
    target = runner("qwen3-tied")
    target.set_feature_layers((0, 2))
    target.forward(make_plan([chain(prompt(9), 0, SCATTERED)]))
    chosen = [np.arange(9, dtype=np.int32), np.array([8, 2], np.int32)]
    expected = [target.features(rows, (2, 0)) for rows in chosen]
    later = [target.features_later(rows, (2, 0)) for rows in chosen]
    for length in (9, 12):
        target.forward(make_plan([chain(prompt(length)[::-1], 0, SCATTERED)]))
    for step, features in zip(later, expected, strict=True):
        np.testing.assert_array_equal(step.read(), features)
        assert step.row_bytes * len(features) == features.nbytes


def test_execute_walks_the_tree(runner: Runners, oracle: Oracles) -> None:
    """Greedy, in a batch with a sampled neighbour: the straight run's tokens come back, with their rows."""
    ids, target = prompt(12), runner("qwen3-tied")
    straight = list(ids)
    for _ in range(4):
        straight.append(int(oracle("qwen3-tied").logits(straight)[-1].argmax()))
    right = straight[12:15]
    wrong = (right[0] + 1) % VOCAB
    tree = make_tree([wrong, right[0], right[1], right[1], right[2]], [0, 0, 1, 2, 4])
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=3)
    prefill(target, ids[:-1], SIDE_BY_SIDE)
    sampled = decode(7, 0, [60], sampling=sampling)
    alone = target.execute(make_plan([sampled]))[0]
    other, greedy = target.execute(make_plan([sampled, decode(ids[-1], 11, SIDE_BY_SIDE, tree)]))
    assert greedy.tokens == straight[12:]
    assert greedy.rows == [1, 3, 5, 6]
    assert (other.tokens, other.rows) == (alone.tokens, [0])
