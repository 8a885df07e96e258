"""What a stack starts."""

from pathlib import Path

import pytest

from draftwood.stack import StackOptions


def options(ranks: int) -> StackOptions:
    return StackOptions(target=Path("a target"), draft=None, tensor_parallel=ranks)


def test_one_rank_is_the_verifier_itself() -> None:
    module, arguments = options(1).verifier_command()
    assert module == "draftwood_verifier"
    assert arguments[:2] == ["--target", "a target"]


def test_several_ranks_are_started_by_torchrun() -> None:
    module, arguments = options(3).verifier_command()
    assert module == "torch.distributed.run"
    assert arguments[:7] == [
        "--standalone", "--nproc-per-node", "3", "-m", "draftwood_verifier", "--target", "a target"
    ]  # fmt: skip
    # The ranks share the threads that one process would have.
    assert arguments[arguments.index("--threads") + 1] == "1"


def test_no_rank_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor_parallel: 0 is below 1"):
        options(0)


@pytest.mark.parametrize(
    ("ranks", "device", "chosen", "drafter"),
    [
        (1, "cpu", None, "cpu"),
        (1, "cuda", None, "cuda:1"),
        (3, "cuda", None, "cuda:3"),
        (1, "cuda:2", None, "cuda:2"),
        (1, "cuda", "cpu", "cpu"),
    ],
)
def test_the_drafter_has_a_card_of_its_own(ranks: int, device: str, chosen: str | None, drafter: str) -> None:
    stack = StackOptions(target=Path("a"), draft=Path("b"), tensor_parallel=ranks, device=device, drafter_device=chosen)
    arguments = stack.verifier_command()[1]
    assert arguments[arguments.index("--device") + 1] == device
    arguments = stack.drafter_arguments(Path("b"), "verifier", "listen")
    assert arguments[arguments.index("--device") + 1] == drafter
