"""Which devices a model may be put on."""

import pytest
import torch

from draftwood_kernels.placement import CPU, placement_of
from draftwood_kernels.step_graphs import StepGraphs


def test_a_cpu() -> None:
    assert placement_of("cpu") == CPU
    assert not CPU.is_gpu
    assert CPU.place(torch.ones(2, dtype=torch.float16)).dtype == torch.float32


@pytest.mark.parametrize("device", ["gpu", "cpu:0", "cuda:x", "cuda:-1", "CUDA", ""])
def test_what_is_no_device(device: str) -> None:
    with pytest.raises(ValueError, match="is neither cpu nor cuda"):
        placement_of(device)


def test_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert placement_of("cuda").device == torch.device("cuda", 0)
    assert placement_of("cuda:1").dtype == torch.bfloat16
    with pytest.raises(ValueError, match="cuda:2 is not here"):
        placement_of("cuda:2")


def test_row_invariant_kernels_are_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert placement_of("cuda", deterministic=True).row_invariant
    assert not placement_of("cuda").row_invariant
    with pytest.raises(ValueError, match="deterministic: needs kernels that only a GPU has"):
        placement_of("cpu", deterministic=True)


def test_steps_on_a_cpu_just_run() -> None:
    graphs, seen = StepGraphs(torch.device("cpu")), []
    for size in (1, 1, 2):
        graphs.run(size, lambda size=size: seen.append(size))
    assert seen == [1, 1, 2]
    assert graphs.captured == 0
