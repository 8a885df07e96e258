"""Training state on disk as safetensors and JSON: no pickles, atomic, resumable."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

STATE = "training_state"


def save_state(output: Path, step: int, module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Write weights, optimizer moments and the step number into `output/training_state`, replacing the last one."""
    fresh = output / f"{STATE}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    tensors = {f"weights.{name}": value.detach().contiguous() for name, value in module.named_parameters()}
    for index, optimizer in enumerate(optimizers):
        for key, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}.{slot}": torch.as_tensor(v).clone() for slot, v in slots.items()}
    save_file(tensors, fresh / "state.safetensors")
    (fresh / "step.json").write_text(json.dumps({"step": step}))
    shutil.rmtree(output / STATE, ignore_errors=True)
    os.replace(fresh, output / STATE)


def load_state(output: Path, module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Restore what `save_state` wrote and return its step; 0 and nothing changed when there is no state yet."""
    folder = output / STATE
    if not folder.exists():
        return 0
    tensors = load_file(folder / "state.safetensors")
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(tensors[f"weights.{name}"])
    for index, optimizer in enumerate(optimizers):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": _slots(tensors, f"optimizer.{index}.")})
    step: int = json.loads((folder / "step.json").read_text())["step"]
    return step


def _slots(tensors: dict[str, Tensor], prefix: str) -> dict[int, dict[str, Tensor]]:
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            key, slot = name.removeprefix(prefix).split(".", 1)
            slots.setdefault(int(key), {})[slot] = value
    return slots
