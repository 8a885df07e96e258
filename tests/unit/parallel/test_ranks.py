"""A target on several ranks gives the logits and tokens of one; what rank 0 accepts, all ranks keep."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftwood_checkpoint.errors import UnsupportedTensor
from draftwood_kernels.sample import SamplingParams
from draftwood_kernels.walk_tree import TreeWalk
from draftwood_verifier import plan as plans
from draftwood_verifier.parallel.groups import Group, GroupLost
from draftwood_verifier.plan import CommitPlan, StepPlan
from draftwood_verifier.plan_message import encode
from draftwood_verifier.ranks import FRAME_BYTES, Leader, follow
from draftwood_verifier.runner import Runner, load_runner
from tests.unit.model.quantized import FP8_CONFIG, encode_fp8, write_quantized
from tests.unit.model.targets import GREEDY, VOCAB, chain, commit_plan, decode, make_plan, make_tree
from tests.unit.parallel.ranks import on_ranks
from tests.unit.parallel.steadiness import MARGIN, check_steady

Target = Callable[[str], Path]
ATOL = MARGIN / 10
TABLE = list(range(3, 40))
ROUNDS = 10
SAMPLINGS = {
    "greedy": GREEDY,
    "plain": SamplingParams(temperature=0.8, seed=5),
    "top-k": SamplingParams(temperature=0.8, top_k=5, seed=6),
    "top-p": SamplingParams(temperature=0.8, top_p=0.7, seed=7),
    "min-p": SamplingParams(temperature=0.8, min_p=0.1, seed=8),
    "all": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=9),
}
Kept = list[tuple[list[int], list[int]]]


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, VOCAB, length)]


class RecordingRunner(Runner):
    """Remembers what it was told to keep."""

    kept: Kept

    def commit(self, plan: CommitPlan) -> None:
        if len(plan.rows):
            self.kept.append((plan.rows.tolist(), plan.slots.tolist()))
        super().commit(plan)


def load(folder: Path, group: Group | None = None) -> RecordingRunner:
    runner = load_runner(folder, pages=64, page_size=4, group=group)
    runner.__class__ = RecordingRunner
    assert isinstance(runner, RecordingRunner)
    runner.kept = []
    return runner


def generate(
    runner: plans.Runner, ids: list[int], sampling: SamplingParams, known: list[int], table: list[int] = TABLE
) -> list[int]:
    """ids and what follows; trees hold a wrong sibling and 0 to 3 tokens of `known`, the text as far as it is known."""
    text, half = list(ids), len(ids) // 2
    for start, end in ((0, half), (half, len(ids) - 1)):
        runner.execute(make_plan([chain(text[start:end], start, table)], logit_rows=[]))
        runner.commit(commit_plan(list(range(end - start)), start, table))
    for round_ in range(ROUNDS):
        right = known[len(text) : len(text) + round_ % 4]
        tokens = [(right[0] + 1) % VOCAB, *right] if right else []
        tree = make_tree(tokens, [0, 0, *range(2, len(tokens))] if right else [])
        [path] = runner.execute(make_plan([decode(text[-1], len(text) - 1, table, tree, sampling)]))
        runner.commit(commit_plan(path.rows, len(text) - 1, table))
        text += path.tokens
    return text


def plain(folder: Path, ids: list[int], sampling: SamplingParams) -> list[int]:
    """The text on one rank, long enough for all rounds, after a check that no token of it is a near tie."""
    runner, text = load(folder), list(ids)
    for _ in range(4):
        text += generate(runner, text, sampling, known=[])[len(text) :]
    check_steady(runner, text, len(ids), sampling, TABLE)
    return text


def generate_together(
    folder: Path,
    ranks: int,
    ids: list[int],
    sampling: SamplingParams,
    known: list[int],
    *,
    load: Callable[[Path, Group], RecordingRunner] = load,
    prepare: Callable[[RecordingRunner, int], None] = lambda _runner, _rank: None,
    table: list[int] = TABLE,
) -> tuple[list[int], list[Kept]]:
    """The text that rank 0 makes, and what each rank kept."""

    def act(group: Group) -> tuple[list[int], Kept]:
        runner, text = load(folder, group), list[int]()
        prepare(runner, group.rank)
        if group.leads:
            leader = Leader(runner, group)
            text = generate(leader, ids, sampling, known, table)
            leader.stop()
        else:
            follow(runner, group)
        return text, runner.kept

    results = on_ranks(ranks, act)
    return results[0][0], [kept for _, kept in results]


@pytest.mark.parametrize(
    ("variant", "ranks"),
    [
        ("qwen3-tied", 2),
        ("qwen3-untied", 6),
        ("llama-bias", 2),
        ("llama-one-kv-head", 3),
        ("llama-llama3", 6),
        ("qwen3-moe", 2),
        ("qwen3-moe-some", 6),
        ("deepseek", 3),
        ("deepseek-no-query-latent", 2),
        ("deepseek-dense-bias", 2),
        ("kimi-k25", 6),
        ("gpt-oss", 2),
    ],
)
def test_logits_and_features(variant: str, ranks: int, target: Target) -> None:
    plan, rows = make_plan([chain(prompt(30), 0, TABLE)]), np.array([3, 29], np.int32)

    def act(group: Group | None) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        runner = load(target(variant), group)
        runner.set_feature_layers((0, 3))
        return runner.forward(plan).numpy(), runner.features(rows, (3, 0))

    logits, features = act(None)
    parts = on_ranks(ranks, act)
    np.testing.assert_allclose(np.concatenate([part for part, _ in parts], axis=1), logits, atol=ATOL)
    np.testing.assert_allclose(parts[0][1], features, atol=ATOL)
    # Routers decide on every rank for itself: that needs the same bits.
    assert len({held.tobytes() for _, held in parts}) == 1


def quantized(source: Path, folder: Path, chosen: str) -> Path:
    return write_quantized(source, folder, encode_fp8, FP8_CONFIG, chosen)[0]


def test_quantised_weights_are_split_between_groups(target: Target, tmp_path: Path) -> None:
    """80 inner columns in groups of 32: one group for one rank, one and a half for the other."""
    folder, plan = quantized(target("llama"), tmp_path, ".mlp."), make_plan([chain(prompt(30), 0, TABLE)])
    parts = on_ranks(2, lambda group: load(folder, group).forward(plan).numpy())
    np.testing.assert_allclose(np.concatenate(parts, axis=1), load(folder).forward(plan).numpy(), atol=ATOL)


def test_a_split_through_a_group_names_the_tensor(target: Target, tmp_path: Path) -> None:
    folder = quantized(target("llama"), tmp_path, ".self_attn.")
    with pytest.raises(UnsupportedTensor, match=r"o_proj\.weight: columns .* do not start and end at groups of 32"):
        on_ranks(2, lambda group: load(folder, group))


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(("variant", "ranks"), [("qwen3-untied", 2), ("llama", 6), ("qwen3-moe", 2)])
def test_tokens(variant: str, ranks: int, name: str, target: Target) -> None:
    ids, sampling = prompt(12), SAMPLINGS[name]
    known = plain(target(variant), ids, sampling)
    text, kept = generate_together(target(variant), ranks, ids, sampling, known)
    assert len(text) == len(ids) + ROUNDS + sum(round_ % 4 for round_ in range(ROUNDS))
    assert text == known[: len(text)]
    # What the last step has kept would have travelled with the next one.
    assert kept == [kept[0], *[kept[0][:-1]] * (ranks - 1)]


def test_a_rank_that_errs_keeps_what_the_others_keep(target: Target) -> None:
    """Accepted lengths are rank 0's decision: noise on one rank's logits changes tokens, but no rank's mind alone."""
    folder, ids = target("qwen3-untied"), prompt(12)
    known = plain(folder, ids, GREEDY)

    def skew(runner: RecordingRunner, rank: int) -> None:
        walk = runner._walk

        def skewed(logits: torch.Tensor, walks: list[TreeWalk]) -> list[tuple[list[int], list[int]]]:
            noise = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(0))
            return walk(logits + noise, walks)

        if rank == 1:
            runner._walk = skewed

    wrong, _ = generate_together(folder, 2, ids, GREEDY, [], prepare=skew)
    assert wrong != known[: len(wrong)]
    text, kept = generate_together(folder, 2, ids, GREEDY, wrong, prepare=skew)
    assert text[: len(wrong)] == wrong
    assert len(text) > len(wrong)  # some trees were followed
    assert kept[1] == kept[0][:-1]


def test_all_ranks_hear_which_features_are_kept(target: Target) -> None:
    """Though rank 0 alone is asked for them: steps that are captured have to be so on all ranks at once."""

    def act(group: Group) -> tuple[int, ...]:
        runner = load(target("qwen3-tied"), group)
        if group.leads:
            leader = Leader(runner, group)
            leader.set_feature_layers((2, 0))
            with pytest.raises(ValueError, match="feature layer 9"):
                leader.set_feature_layers((9,))
            leader.stop()
        else:
            follow(runner, group)
        return runner._feature_layers

    assert on_ranks(2, act) == [(0, 2), (0, 2)]


def test_a_plan_larger_than_a_frame(target: Target) -> None:
    folder, ids, table = target("qwen3-tied"), prompt(12), TABLE + [0] * FRAME_BYTES
    plan = make_plan([chain(ids, 0, table)])
    assert encode(commit_plan([], 0, table), plan).nbytes > 2 * FRAME_BYTES
    known = plain(folder, ids, GREEDY)
    text, _ = generate_together(folder, 2, ids, GREEDY, known, table=table)
    assert text == known[: len(text)]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_in_a_step_ends_the_group(failing: int, target: Target) -> None:
    def fail(runner: RecordingRunner, rank: int) -> None:
        def broken(plan: StepPlan) -> torch.Tensor:
            raise MemoryError(f"{len(plan.token_ids)} rows are too many")

        if rank == failing:
            runner.forward = broken  # type: ignore[method-assign]

    with pytest.raises(GroupLost, match=f"rank {failing} of 2 can't go on with the others: 6 rows are too many"):
        generate_together(target("qwen3-tied"), 2, prompt(12), GREEDY, [], prepare=fail)
