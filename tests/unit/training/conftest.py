import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from draftwood_drafter.training.drafter import DrafterPlan, write_draft_config
from draftwood_drafter.training.hugging_face import load_target
from draftwood_drafter.training.target import TargetPlan, build_target, export_target
from draftwood_drafter.training.tokenizer import save_tokenizer, train_tokenizer

TEXTS = ["def add(a, b):\n    return a + b\n", "class Tree:\n    def grow(self):\n        return self.height\n"] * 20


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random 6-layer target with its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-target")
    save_tokenizer(train_tokenizer(TEXTS, 320), folder, 128)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    export_target(build_target(tiny_plan(folder, 1), tokenizer), tokenizer, folder)
    return folder


def tiny_plan(output: Path, steps: int) -> TargetPlan:
    return TargetPlan(
        output=output, steps=steps, hidden_size=64, layers=6, heads=2, kv_heads=1, head_dim=32, intermediate_size=96,
        length=32, context_limit=128, sequences=2, save_every=2,
    )  # fmt: skip


@pytest.fixture
def draft_config_folder(tiny_target: Path, tmp_path: Path) -> Path:
    plan = DrafterPlan(output=tmp_path / "drafter", steps=1, mask_token_id=1, layer_ids=(1, 2, 3))
    write_draft_config(plan, load_target(tiny_target).config)
    return plan.output


def same_weights(left: Path, right: Path) -> bool:
    a, b = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    assert json.loads((left / "config.json").read_text()) == json.loads((right / "config.json").read_text())
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
