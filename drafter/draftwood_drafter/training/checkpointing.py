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
    old = output / f"{STATE}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (output / STATE).exists():
        os.replace(output / STATE, old)
    os.replace(fresh, output / STATE)
    shutil.rmtree(old, ignore_errors=True)


def write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Replace a checkpoint's weights in one move, so that nobody reads half a file."""
    fresh = path.with_suffix(".new")
    save_file(weights, fresh, metadata={"format": "pt"})
    os.replace(fresh, path)


def load_state(output: Path, module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Restore what `save_state` wrote and return its step; 0 and nothing changed when there is no state yet."""
    # A run that died between the two moves of `save_state` left the last state under its other name.
    folder = next((f for f in (output / STATE, output / f"{STATE}.old") if f.exists()), None)
    if folder is None:
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
